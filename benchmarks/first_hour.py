"""Tables of what benchmarks/first_hour.sh left in a folder: start, step and held-out reward of each part.

python benchmarks/first_hour.py FOLDER
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

WARM = 20
"""Steps after which seconds are counted."""
BEGINS = ("starting Ray", "reading the data", "starting 1 trainer rank", "loading weights", "ready")
PHASES = ("step", "train", "generate", "onload", "offload", "publish", "logprobs", "reward", "pack", "other")
TARGET_S = 60
"""To the first step, with kernels that are there."""

Row = dict[str, Any]


def start(text: str, rows: list[Row], began: float) -> list[str]:
    """Seconds at which each part of the start begins, and at which the first step of the run had ended."""
    told = [(float(at), what) for at, what in re.findall(r"^ *(\d+) s  (.*)$", text, re.MULTILINE)]
    at = {begin: next((f"{seconds:.0f}" for seconds, what in told if what.startswith(begin)), "") for begin in BEGINS}
    steps = [row for row in rows if row["step"] > 0]
    return [*at.values(), f"{steps[0]['time'] - began:.0f}" if steps else ""]


def step(rows: list[Row]) -> list[str]:
    """Medians of the reinforcement-learning steps that had no evaluation."""
    counted = [row for row in rows if row["stage"] == "rl" and row["step"] > WARM and "seconds/eval" not in row]
    if not counted:
        return []
    return [f"{statistics.median(row.get(f'seconds/{phase}', 0.0) for row in counted):.3f}" for phase in PHASES]


def held_out(rows: list[Row]) -> dict[int, float]:
    return {row["step"]: row["eval/reward_mean"] for row in rows if "eval/reward_mean" in row}


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    folder = Path(sys.argv[1])
    parts = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    metrics = {name: [json.loads(row) for row in path.read_text().splitlines()] for name, path in parts.items()}
    print(f"Seconds from the command; promised to the first step: {TARGET_S}, with kernels that are there\n")
    print(line("part", *BEGINS, "first step ended"))
    print("|---" * (len(BEGINS) + 2) + "|")
    for name, rows in metrics.items():
        began = float((folder / f"{name}.start").read_text())
        print(line(name, *start((folder / f"{name}.txt").read_text(), rows, began)))
    print(f"\nMedian seconds of a step, steps above {WARM}, without evaluation\n")
    print(line("part", *PHASES))
    print("|---" * (len(PHASES) + 1) + "|")
    for name, rows in metrics.items():
        if cells := step(rows):
            print(line(name, *cells))
    seeds = {name: held_out(rows) for name, rows in metrics.items() if name.startswith(("seed-", "lora"))}
    if seeds:
        steps = sorted({number for scores in seeds.values() for number in scores})
        print("\nHeld-out reward at step\n")
        print(line("part", *map(str, steps)))
        print("|---" * (len(steps) + 1) + "|")
        for name, scores in seeds.items():
            print(line(name, *(f"{scores[number]:.3f}" if number in scores else "" for number in steps)))


if __name__ == "__main__":
    main()
