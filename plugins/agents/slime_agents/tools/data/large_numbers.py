"""The task `calculator-large`: problems with numbers of up to four digits, for published models that can call tools.

`python -m slime_agents.tools.data.large_numbers --out DIR` writes three files; the same three lie beside this module.

`large-numbers-train.jsonl`, `large-numbers-heldout.jsonl`
    Rows have `prompt`, `label` (the exact number as text) and `kind`, the template. Held-out rows share no problem with
    the training rows: no template with the same numbers.
`large-numbers-calls.jsonl`
    Demonstrations of the first training problems: a row that ends with the call, and one that ends with the answer
    behind its result. Shown answers alone, Qwen2.5-Coder-0.5B no longer calls.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from slime_agents.tools.calculator import calculator
from slime_rewards.starter.data.prompt_set import Row, split, write

SEED = 0
NUM_HELDOUT, NUM_TRAIN, NUM_CALLS = 128, 2048, 128


TEMPLATES = {
    "product": ("What is {a} * {b}?", "{a} * {b}"),
    "sum": ("What is {b} * {c} + {a}?", "{b} * {c} + {a}"),
    "boxes": ("A warehouse has {a} boxes with {b} screws in each. How many screws are there in all?", "{a} * {b}"),
    "sold": (
        "A warehouse has {a} boxes with {b} screws in each, and sells {c} screws. How many screws are left?",
        "{a} * {b} - {c}",
    ),
}
"""Texts and questions to the calculator, by kind; `a` has four digits, `b` and `c` have three."""


def draws(rng: random.Random) -> Iterator[tuple[tuple[str, str], Row]]:
    """Endless draws: the template and what the calculator is asked, and the row."""
    while True:
        kind, (text, asked) = rng.choice(list(TEMPLATES.items()))
        numbers = {"a": rng.randrange(1000, 10000), "b": rng.randrange(100, 1000), "c": rng.randrange(100, 1000)}
        expression = asked.format(**numbers)
        prompt = [{"role": "user", "content": text.format(**numbers)}]
        yield (kind, expression), {"prompt": prompt, "label": calculator(expression), "kind": kind}


def demonstrations(row: Row, expression: str) -> list[Row]:
    """Both demonstrations of a problem, whose call is written as Qwen2.5's chat template writes it."""
    call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    assert isinstance(row["prompt"], list)
    calls = [*row["prompt"], {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"}]
    answers = [
        *calls,
        {"role": "tool", "content": row["label"]},
        {"role": "assistant", "content": f"The answer is {row['label']}."},
    ]
    return [{"messages": messages, "kind": row["kind"]} for messages in (calls, answers)]


def rows() -> dict[str, list[Row]]:
    train, heldout = split(draws, SEED, NUM_TRAIN, NUM_HELDOUT)
    return {
        "heldout": [row for _, row in heldout],
        "train": [row for _, row in train],
        "calls": [each for (_, expression), row in train[:NUM_CALLS] for each in demonstrations(row, expression)],
    }


if __name__ == "__main__":
    write("large-numbers", rows())
