"""Main program of the generated prompt sets: distinct rows, split in two, written as jsonl."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

Row = dict[str, object]
Draws = Callable[[random.Random], Iterator[tuple[object, Row]]]
"""Endless draws from a random state: the identity of a problem, and its row."""
Problems = list[tuple[object, Row]]


def split(draws: Draws, seed: int, num_train: int, num_heldout: int) -> tuple[Problems, Problems]:
    """Training and held-out problems, each once in one of the two."""
    found = dict[object, Row]()
    drawn = draws(random.Random(seed))
    while len(found) < num_train + num_heldout:
        problem, row = next(drawn)
        found.setdefault(problem, row)
    problems = list(found.items())
    return problems[num_heldout:], problems[:num_heldout]


def main(
    name: str,
    draws: Draws,
    seed: int,
    num_train: int,
    num_heldout: int,
    num_worked: int = 0,
    worked: Callable[[object, Row], Row] | None = None,
) -> None:
    """The program: write `<name>-train.jsonl` and `<name>-heldout.jsonl` into `--out`.

    Args:
        worked: makes the demonstration of a training problem; `<name>-worked.jsonl` has the first `num_worked`.
    """
    parser = argparse.ArgumentParser(description=f"Write the prompt set {name}.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out
    train, heldout = split(draws, seed, num_train, num_heldout)
    parts = {"train": [row for _, row in train], "heldout": [row for _, row in heldout]}
    if worked:
        parts["worked"] = [worked(problem, row) for problem, row in train[:num_worked]]
    for part, rows in parts.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}-{part}.jsonl").write_text(text, encoding="utf-8", newline="\n")
