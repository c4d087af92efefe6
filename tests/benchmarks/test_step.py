"""What the step benchmark makes of the samples it took."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_idle_shares_are_of_the_steps_alone() -> None:
    idle_shares = runpy.run_path(str(BENCHMARKS / "step.py"))["idle_shares"]
    rows = [{"time": 110.0, "seconds/step": 10.0}, {"time": 120.0, "seconds/step": 10.0}]
    samples = [(90.0, [0.0, 0.0]), (101.0, [1.0, 0.5]), (119.0, [0.5, 0.0]), (121.0, [0.0, 0.0])]
    assert idle_shares(samples, rows) == pytest.approx([0.25, 0.75])
    assert idle_shares([], rows) == []
