"""Word problems of one step, and a few of two, with whole numbers, for models of 0.1 to 1 B parameters.

``python -m slime_rewards.starter.data.word_problems --out FOLDER`` writes ``word-problems-train.jsonl``,
``word-problems-heldout.jsonl`` and ``word-problems-worked.jsonl``; the same three lie beside this module. A row has
``prompt``, ``label`` (text) and ``kind``, the template. Held-out rows share no problem with the training rows: no
template with the same numbers. The worked rows are the first `NUM_WORKED` training problems as ``messages``, with an
answer that calculates in steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slime_rewards.starter.data.prompt_set import Row, main

SEED = 0
NUM_TRAIN, NUM_HELDOUT, NUM_WORKED = 2048, 256, 1024
NAMES = ("Ana", "Ben", "Chloe", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas")
THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "stickers")


@dataclass(frozen=True)
class Template:
    """A problem with numbers `a`, `b`, `c` drawn from ranges.

    Args:
        text: with places for the numbers, a name and a thing.
        answer: of the numbers; a draw whose answer is not above 0 is drawn again.
        worked: the calculation in steps, of the same numbers.
    """

    text: str
    answer: Callable[[int, int, int], int]
    worked: Callable[[int, int, int], str]
    a: range
    b: range
    c: range = range(1)


def product(a: int, b: int) -> str:
    """`7 x 18 = 7 x 10 + 7 x 8 = 70 + 56 = 126`: tens and ones of `b` apart."""
    tens, ones = b - b % 10, b % 10
    steps = f"{a} x {tens} + {a} x {ones} = {a * tens} + {a * ones} = " if tens and ones else ""
    return f"{a} x {b} = {steps}{a * b}"


def total(a: int, b: int, sign: int = 1) -> str:
    """`47 + 38 = 47 + 30 + 8 = 77 + 8 = 85`, or the same with minus: tens of `b` first."""
    tens, ones, of = b - b % 10, b % 10, "+" if sign > 0 else "-"
    steps = f"{a} {of} {tens} {of} {ones} = {a + sign * tens} {of} {ones} = " if tens and ones else ""
    return f"{a} {of} {b} = {steps}{a + sign * b}"


def difference(a: int, b: int) -> str:
    return total(a, b, -1)


TEMPLATES = {
    "groups": Template(
        "There are {a} boxes with {b} {thing} in each. How many {thing} are there in all?",
        lambda a, b, c: a * b, lambda a, b, c: product(a, b), range(2, 13), range(3, 21),
    ),
    "rows": Template(
        "{name} puts {thing} into {a} rows of {b}. How many {thing} does {name} have?",
        lambda a, b, c: a * b, lambda a, b, c: product(a, b), range(2, 13), range(3, 21),
    ),
    "more": Template(
        "{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?",
        lambda a, b, c: a + b, lambda a, b, c: total(a, b), range(12, 90), range(12, 90),
    ),
    "left": Template(
        "{name} has {a} {thing} and gives {b} of them away. How many {thing} does {name} have left?",
        lambda a, b, c: a - b, lambda a, b, c: difference(a, b), range(40, 100), range(12, 40),
    ),
    "share": Template(
        "{name} shares {a} {thing} equally among {b} friends. How many {thing} does each friend get?",
        lambda a, b, c: a // b if a % b == 0 else 0,
        lambda a, b, c: f"{b} x {a // b} = {a}, so {a} / {b} = {a // b}", range(6, 101), range(2, 11),
    ),
    "gift": Template(
        "{name} has {a} {thing}, gets {b} more and gives {c} away. How many {thing} does {name} have now?",
        lambda a, b, c: a + b - c,
        lambda a, b, c: f"{total(a, b)}. {difference(a + b, c)}", range(20, 80), range(10, 60), range(5, 30),
    ),
}  # fmt: skip


def draws(rng: random.Random) -> Iterator[tuple[object, Row]]:
    """Endless draws: template and numbers, and the row."""
    while True:
        kind = rng.choice(list(TEMPLATES))
        template = TEMPLATES[kind]
        a, b, c = (rng.choice(numbers) for numbers in (template.a, template.b, template.c))
        if (answer := template.answer(a, b, c)) <= 0:
            continue
        text = template.text.format(a=a, b=b, c=c, name=rng.choice(NAMES), thing=rng.choice(THINGS))
        yield (kind, a, b, c), {"prompt": [{"role": "user", "content": text}], "label": str(answer), "kind": kind}


def worked(problem: object, row: Row) -> Row:
    """The demonstration of a row: its prompt, and an answer that calculates in steps and ends with the label."""
    assert isinstance(problem, tuple)
    kind, *numbers = problem
    answer = f"{TEMPLATES[kind].worked(*numbers)}. The answer is {row['label']}."
    prompt = row["prompt"]
    assert isinstance(prompt, list)
    return {"messages": [*prompt, {"role": "assistant", "content": answer}], "kind": kind}


if __name__ == "__main__":
    main("word-problems", draws, SEED, NUM_TRAIN, NUM_HELDOUT, NUM_WORKED, worked)
