"""What the programs of the generated prompt sets share: distinct rows, split in two, written as jsonl."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from pathlib import Path

Row = dict[str, object]
Draws = Callable[[random.Random], Iterator[tuple[object, Row]]]
"""From a random state to endless draws: what makes two rows the same problem, and the row."""


Problems = list[tuple[object, Row]]
"""What makes a row the problem that it is, and the row."""


def split(draws: Draws, seed: int, num_train: int, num_heldout: int) -> tuple[Problems, Problems]:
    """Training and held-out problems, each once in one of the two."""
    found = list(islice(_distinct(draws(random.Random(seed))), num_train + num_heldout))
    return found[num_heldout:], found[:num_heldout]


def _distinct(drawn: Iterator[tuple[object, Row]]) -> Iterator[tuple[object, Row]]:
    seen = set[Hashable]()
    for problem, row in drawn:
        if problem not in seen:
            seen.add(problem)
            yield problem, row


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
