"""The program that drives many attempts at once."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from slime_testing.patience import run_within

PROGRAM = Path(__file__).parents[2] / "benchmarks/scale.py"


def test_all_attempts_end_and_are_counted() -> None:
    """Its own assertions see to it that each has its verdict and every turn, and that none is left when they are
    cancelled."""
    command = [sys.executable, PROGRAM, "--attempts", "64", "--turns", "3", "--answer-tokens", "10", "--latency", "0.1"]
    done = run_within(200, command)
    found = dict(re.findall(r"^(.*?) +([\d.,]+)(?: \w+)?$", done.stdout, re.M))
    assert float(found.pop("attempts")) == 64
    assert list(found) == [
        "turns a second",
        "processor time of a turn",
        "memory of an attempt, tokens included",
        "until all are cancelled",
        "until all are aborted",
    ]
    assert min(float(found[name].replace(",", "")) for name in list(found)[:2]) > 0
