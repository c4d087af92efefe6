"""A whole run of a mixture of experts that replays the experts of its engine, and goes on from a checkpoint as if it
had never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.running import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SETTINGS = {
    "train.routing_replay": "true",
    "rollout.max_requests_per_engine": 8,
    "eval.path": "null",
}


def test_a_run_replays_and_continues_bit_for_bit(tmp_path: Path) -> None:
    """Its last two steps come a second time: what it left behind them is taken away."""
    run = Run(tmp_path, model="glm4-moe-tiny", settings=SETTINGS, forked=True).start().succeed()
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    # Only the last token of each short sequence has no experts. In fp32 engine and trainer agree.
    assert all(row["train/routing_replayed_share"] > 0.8 for row in steps)
    assert all(row["rollout/routed_experts_missing_share"] == 0 for row in steps)
    assert all(row["train/routing_differs_share"] < 0.2 for row in steps)
    assert max(row["train/logprob_diff_max"] for row in steps) < 1e-4
    losses, weights = run.losses(), run.weights()
    for folder in (run.path / "checkpoints/step-000008", run.path / "export"):
        shutil.rmtree(folder)
    assert "continues after rl 2" in run.start().succeed().text()
    assert run.losses() == losses
    assert run.weights() == weights
