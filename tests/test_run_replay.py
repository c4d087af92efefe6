"""A whole run of a mixture of experts that replays the experts of its engine, and goes on from a checkpoint as if it
had never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.running import NO_CHECKPOINTS, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SETTINGS = {
    "train.routing_replay": "true",
    "rollout.max_requests_per_engine": 8,
    "eval.path": "null",
}


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("replayed")
    return Run(folder, model="glm4-moe-tiny", settings=SETTINGS, forked=True).start().succeed()


def require_replay(run: Run) -> None:
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    # Only the last token of each short sequence has no experts. In fp32 engine and trainer agree.
    assert all(row["train/routing_replayed_share"] > 0.8 for row in steps)
    assert all(row["rollout/routed_experts_missing_share"] == 0 for row in steps)
    assert all(row["train/routing_differs_share"] < 0.2 for row in steps)
    assert max(row["train/logprob_diff_max"] for row in steps) < 1e-4


@pytest.mark.usefixtures("_mooncake")
def test_a_prefill_and_a_decode_engine_tell_of_the_experts_that_one_engine_tells_of(
    replayed: Run, tmp_path: Path
) -> None:
    """Losses and weights rest on every row."""
    settings = {**SETTINGS, **NO_CHECKPOINTS}
    run = Run(tmp_path, model="glm4-moe-tiny", cluster="local-pd", settings=settings, forked=True).start().succeed()
    require_replay(run)
    for name in ("train/routing_replayed_share", "train/routing_differs_share", "train/logprob_diff_mean"):
        assert [row.get(name) for row in run.rows("rl")] == [row.get(name) for row in replayed.rows("rl")]
    assert run.losses() == replayed.losses()
    assert run.weights() == replayed.weights()


def test_a_run_replays_and_continues_bit_for_bit(replayed: Run) -> None:
    """Its last two steps come a second time: what it left behind them is taken away."""
    run = replayed
    require_replay(run)
    losses, weights = run.losses(), run.weights()
    for folder in (run.path / "checkpoints/step-000008", run.path / "export"):
        shutil.rmtree(folder)
    assert "continues after rl 2" in run.start().succeed().text()
    assert run.losses() == losses
    assert run.weights() == weights
