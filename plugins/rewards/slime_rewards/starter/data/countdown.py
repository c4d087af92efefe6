"""Countdown: make a target of three or four numbers with the four operations.

``python -m slime_rewards.starter.data.countdown --out FOLDER`` writes ``countdown-train.jsonl`` and
``countdown-heldout.jsonl``; the same two lie beside this module. Every row can be solved: its target is the value of an
expression that was drawn. The sets share no row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

from slime_rewards.starter.data.prompt_set import Row, main

SEED = 0
NUM_TRAIN, NUM_HELDOUT = 2048, 256
ASK = (
    "Use each of the numbers {numbers} exactly once, with + - * / and brackets, to make {target}. "
    "Think first. Then write the expression alone in <answer> </answer>, for example <answer> (1 + 2) / 3 </answer>."
)


def draws(rng: random.Random) -> Iterator[tuple[object, Row]]:
    """Endless draws: what makes a problem the same, and its row."""
    while True:
        numbers = [rng.randint(2, 50) for _ in range(rng.choice((3, 3, 4)))]
        target = value_of(list(map(Fraction, numbers)), rng)
        if target.denominator != 1 or not 10 <= target <= 200:
            continue
        listed = ", ".join(map(str, numbers))
        prompt = [{"role": "user", "content": ASK.format(numbers=listed, target=target)}]
        label = {"numbers": numbers, "target": int(target)}
        yield (tuple(sorted(numbers)), int(target)), {"prompt": prompt, "label": label}


def value_of(numbers: list[Fraction], rng: random.Random) -> Fraction:
    """The value of a random expression of all the numbers; divisions that leave a rest are left out."""
    while len(numbers) > 1:
        a, b = (numbers.pop(rng.randrange(len(numbers))) for _ in range(2))
        results = [a + b, a - b, a * b]
        if b and (a / b).denominator == 1:
            results.append(a / b)
        numbers.append(rng.choice(results))
    return numbers[0]


if __name__ == "__main__":
    main("countdown", draws, SEED, NUM_TRAIN, NUM_HELDOUT)
