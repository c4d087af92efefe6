"""Right and wrong answers that reward `math` pays, by kind, and the slowest of each.

    python benchmarks/math_answers.py

The pairs and the responses are those of its tests, `plugins/rewards/tests/math/data`: `graded.tsv`, `held-out.tsv` and
`written-otherwise.tsv` (an answer in a box, both ways round), and `stated.jsonl` (whole responses).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from machine import conditions

from slime_rewards.math.rewards import MathReward
from slime_testing.plugins import sample

DATA = Path(__file__).parents[1] / "plugins/rewards/tests/math/data"


@dataclass
class Counts:
    """Of one kind: how many are right and wrong, how many of each are paid, and the seconds of the slowest."""

    right: int = 0
    right_paid: int = 0
    wrong: int = 0
    wrong_paid: int = 0
    slowest: float = 0.0


def cases() -> Iterator[tuple[str, str, str, bool]]:
    """Kind, label, response, and whether it is right."""
    for name in ("graded", "held-out", "written-otherwise"):
        columns, *rows = (line.split("\t") for line in (DATA / f"{name}.tsv").read_text().splitlines())
        for row in rows:
            of = dict(zip(columns, row, strict=True))
            kind, is_right = f"`{name}`: {of.get('kind', 'all')}", of["judgement"] == "same"
            yield kind, of["label"], f"\\boxed{{{of['answer']}}}", is_right
            yield kind, of["answer"], f"\\boxed{{{of['label']}}}", is_right
    for line in (DATA / "stated.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield f"`stated`: {row['kind']}", row["label"], row["response"], row["right"]


def main() -> None:
    reward, counts = MathReward(), dict[str, Counts]()
    for kind, label, response, is_right in cases():
        began = time.process_time()
        is_paid = reward.score(sample(response, label)).value == 1.0
        seconds = time.process_time() - began
        for each in (kind, "all"):
            of = counts.setdefault(each, Counts())
            of.slowest = max(of.slowest, seconds)
            of.right += is_right
            of.wrong += not is_right
            of.right_paid += is_right and is_paid
            of.wrong_paid += not is_right and is_paid
    print(conditions(), "\n")
    print("| kind | right | paid | wrong | paid | slowest, ms |\n|---|---|---|---|---|---|")
    for kind, of in sorted(counts.items(), key=lambda each: (each[0] == "all", each[0])):
        cells = [kind, of.right, of.right_paid, of.wrong, of.wrong_paid, f"{1000 * of.slowest:.0f}"]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
