"""The comparison of a bound with a lag: its clock and its rules, and the run that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine

FILE = Path(__file__).parents[2] / "benchmarks/steps_ahead.py"


def test_its_run_is_accepted() -> None:
    (line,) = re.findall(r"benchmarks/steps_ahead\.py (\+.*)", FILE.read_text())
    assert examine(line.split()).problems == []


def test_its_clock_gives_what_a_pencil_does(program: Any) -> None:
    """Each step of the engine takes 100 s. The first is waited for, then trainers of 200 s never wait."""
    steps, train_s = 30, 200.0
    lag, own = (
        program.simulate(rule, 3, program.AT_ONCE["one step"], 0.0, lambda step: train_s, steps)
        for rule in (program.Lag, program.StepsAhead)
    )
    assert lag.step_s == own.step_s == (100 + steps * train_s) / steps
    assert lag.trainers_idle == own.trainers_idle == 100 / (100 + steps * train_s)
    assert lag.staleness == lag.tokens_lag == pytest.approx((0 + 1 + 2 + 3 * 27) / steps, abs=0.05)
    # Steps 5 to 9 begin before the first one is measured; then groups begin one step ahead.
    assert own.staleness < (0 + 1 + 2 + 3 * 6 + 1 * 21 + 0.5) / steps


def test_seconds_are_drawn_by_their_key_with_the_mean_that_they_say(program: Any) -> None:
    drawn = [program.drawn(100.0, 0.4, f"trainers {step}") for step in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(100.0, rel=0.01)
    assert drawn[7] == program.drawn(100.0, 0.4, "trainers 7") != drawn[8]
