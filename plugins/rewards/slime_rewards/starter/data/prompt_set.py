"""Main programs of the generated prompt sets, which write jsonl: of parts, and of distinct draws, split in two."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def write(name: str, parts: Mapping[str, Sequence[object]]) -> None:
    """The program: write `<name>-<part>.jsonl` into `--out`, or beside the module that is run, for every part."""
    parser = argparse.ArgumentParser(description=f"Write the prompt set {name}.")
    parser.add_argument("--out", type=Path, default=Path(sys.argv[0]).parent)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}-{part}.jsonl").write_text(text, encoding="utf-8", newline="\n")


def main(
    name: str,
    draws: Draws,
    seed: int,
    num_train: int,
    num_heldout: int,
    num_worked: int = 0,
    worked: Callable[[object, Row], Row] | None = None,
) -> None:
    """`write` of the parts `train` and `heldout`.

    Args:
        worked: makes the demonstration of a training problem; `<name>-worked.jsonl` has the first `num_worked`.
    """
    train, heldout = split(draws, seed, num_train, num_heldout)
    parts = {"train": [row for _, row in train], "heldout": [row for _, row in heldout]}
    if worked:
        parts["worked"] = [worked(problem, row) for problem, row in train[:num_worked]]
    write(name, parts)
