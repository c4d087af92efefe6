"""The program that compares rollouts with the same load sent straight to the engines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within

PROGRAM = Path(__file__).parents[2] / "benchmarks/rollout.py"
SMALL = ("--rounds", "1", "--prompts", "2", "--samples", "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "load", [[], ["--turns", "3", "--lengths", "8", "1", "24", "--engines", "2"]], ids=["plain", "turns"]
)
def test_both_sides_generate_the_same_load(load: list[str]) -> None:
    """Its own assertion sees to it that each straight answer is as long as the loop's."""
    done = run_within(280, [sys.executable, PROGRAM, *SMALL, *load])
    [ours, theirs, ratio] = re.findall(r"^\| 1 \| (\d+) \| (\d+) \| ([\d.]+) \|$", done.stdout, re.M)[0]
    assert float(ratio) == pytest.approx(int(ours) / int(theirs), rel=0.1), "of numbers that are rounded"
    assert re.search(rf"^median ratio {re.escape(ratio)}, promised {0.9 if load else 0.95}: ", done.stdout, re.M)
