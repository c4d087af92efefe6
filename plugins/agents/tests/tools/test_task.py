"""What docs/tools.md and examples/tool promise of the task `calculator`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from slime.observe.metrics import HELD_OUT
from slime_observers.samples.rows import read_samples
from tests.running import Run
from tests.typed import example


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_laptop_run_learns_to_call_the_calculator(tmp_path: Path) -> None:
    """In a third of its reinforcement learning, from guesses to right answers on held-out problems: the example's
    function and command."""
    run = Run(tmp_path, settings=example("tool", tmp_path), shortened={}, forked=True).start().succeed()
    held_out = [row[HELD_OUT] for row in run.rows("rl") if HELD_OUT in row]
    assert held_out[0] < 0.3
    assert held_out[-1] > 0.7
    rows = read_samples(run.path / "samples/step-000010.jsonl")
    called = [row for row in rows if [turn["role"] for turn in row["turns"]] == ["assistant", "tool", "assistant"]]
    assert len(called) > len(rows) / 2
    assert all(row["turns"][1]["content"] == row["label"] for row in called if row["reward"])
    steps = [row for row in run.rows("rl") if "rollout/calls_mean" in row]
    assert steps[-1]["step"] == 10
    assert steps[-1]["rollout/calls_mean"] > 2 * steps[0]["rollout/calls_mean"] > 0
    for row in rows:
        roles, notes = Counter(turn["role"] for turn in row["turns"]), row["notes"]
        assert notes["turns"] == roles["assistant"]
        if row["finish"] == "completed":  # else there may have been no room for what the tool said
            assert notes["calls"] + notes["ill_formed_calls"] == roles["tool"]
