"""The program that counts what faults of programs cost."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within

PROGRAM = Path(__file__).parents[2] / "benchmarks/program_faults.py"


@pytest.mark.slow
def test_a_fault_of_each_kind_costs_its_attempt_alone() -> None:
    words = ["--prompts", "25", "--workers", "4", "--latency", "0.1", "--timeout-s", "5"]
    done = run_within(250, [sys.executable, PROGRAM, *words])
    assert "with 5 faults of 100 attempts" in done.stdout
    assert len(re.findall(r"[\d.]+(?: %)?$", done.stdout, re.M)) == 3
