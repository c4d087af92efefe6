"""Main programs of the generated prompt sets, which write jsonl: of parts, and of distinct draws, split in two."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TypeVar

Row = dict[str, object]
Draws = Callable[[random.Random], Iterator[tuple[object, Row]]]
"""Endless draws from a random state: the identity of a problem, and its row."""
T = TypeVar("T")


def split(
    draws: Callable[[random.Random], Iterator[tuple[T, Row]]], seed: int, num_train: int, num_heldout: int
) -> tuple[list[tuple[T, Row]], list[tuple[T, Row]]]:
    """Training and held-out problems, each once in one of the two."""
    found = dict[T, Row]()
    drawn = draws(random.Random(seed))
    while len(found) < num_train + num_heldout:
        problem, row = next(drawn)
        found.setdefault(problem, row)
    problems = list(found.items())
    return problems[num_heldout:], problems[:num_heldout]


def split_pairs(rng: random.Random, num_heldout: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Other and held-out pairs of numbers of two digits. The mirror image of a held-out one is in neither; others may
    have theirs among them."""
    unordered = list(combinations_with_replacement(range(10, 100), 2))
    rng.shuffle(unordered)
    heldout = [rng.choice([(x, y), (y, x)]) for x, y in unordered[:num_heldout]]
    rest = sorted({pair for x, y in unordered[num_heldout:] for pair in ((x, y), (y, x))})
    rng.shuffle(rest)
    return rest, heldout


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
