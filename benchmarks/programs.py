"""Tries the reward `code` on programs and labels as they are written: `python benchmarks/programs.py [--table]`.

Ends with 1 where a right program is not paid, a wrong one is, or a label is read that should be refused. `--table`
prints what `benchmarks/results/programs.md` holds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from slime.types import Prompt, Sample, Status
from slime_rewards.code.reward import CodeReward
from slime_rewards.code.sandbox import missing

PAIRS = Path(__file__).parents[1] / "plugins/rewards/tests/code/data/programs.jsonl"
TRIES = 5
"""Of a program, where the machine is too busy for it."""


class Pair(NamedTuple):
    """A line of `PAIRS`.

    Attributes:
        right: the value; `invalid` or `error`: the label is refused; `none`: there is no program.
    """

    kind: str
    name: str
    label: Any
    response: str
    right: float | str


def pairs() -> list[Pair]:
    return [Pair(*json.loads(line)) for line in PAIRS.read_text(encoding="utf-8").splitlines()]


def found(pair: Pair) -> float | str:
    """What the reward says, in the words of `Pair.right`; else why there is no value."""
    for _ in range(TRIES):
        sample = Sample(Prompt("0/0", (), (), pair.label), 0, response=pair.response, status=Status.COMPLETED)
        said = CodeReward().score(sample)
        if "too busy" not in said.reason:
            break
    if said.value is None:
        return said.kind.value
    return "none" if said.parts["no_program"] else said.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    assert not missing(), missing()
    tried, began = pairs(), time.monotonic()
    with ThreadPoolExecutor(asked.workers) as pool:
        values = list(pool.map(found, tried))
    wrong = [(pair, value) for pair, value in zip(tried, values, strict=True) if value != pair.right]
    for pair, value in wrong:
        print(f"WRONG {pair.kind}, {pair.name}: {value}, not {pair.right}", file=sys.stderr)
    rows, right = Counter(pair.kind for pair in tried), Counter(pair.kind for pair in tried if pair.right == 1)
    bad = Counter(pair.kind for pair, _ in wrong)
    if asked.table:
        print("| kind | pairs | right programs | as they should be |\n|---|---|---|---|")
        for kind, count in rows.items():
            print(f"| {kind} | {count} | {right[kind]} | {count - bad[kind]} |")
    paid = sum(value == 1 and pair.right != 1 for pair, value in zip(tried, values, strict=True))
    unpaid = sum(value != 1 and pair.right == 1 for pair, value in zip(tried, values, strict=True))
    python = f"Linux {platform.release()}, Python {platform.python_version()}"
    counts = f"{unpaid} right programs not paid, {paid} others paid, {len(wrong)} wrong in all"
    print(f"{len(tried)} pairs, {sum(right.values())} with a right program: {counts}")
    print(f"{python}, {asked.workers} workers, {time.monotonic() - began:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
