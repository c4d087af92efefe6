"""Whole runs whose engine is more than a process. That no placement or transport changes the result is shown by the
killed run of test_run.py, too."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from tests.running import NO_CHECKPOINTS, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.usefixtures("_mooncake")
def test_a_prefill_and_a_decode_engine_draw_what_one_engine_draws(finished: Run, tmp_path: Path) -> None:
    """Losses and weights rest on every sample and its log-probs."""
    run = Run(tmp_path, cluster="local-pd", settings={"eval.interval": 1000, **NO_CHECKPOINTS}).start().succeed()
    assert run.weights() == finished.weights()
    assert run.losses() == finished.losses()
    prefill, decode = (run.path / f"logs/engine-{index}.log" for index in range(2))
    assert "Prefill batch" in prefill.read_text()
    assert "Decode batch" in decode.read_text()
    assert "Decode batch" not in prefill.read_text()


def test_an_engine_over_two_hosts_trains_and_loses_one_by_name(tmp_path: Path) -> None:
    """Both are this host: a process each, a rank each. The run goes on where it was once it is started again."""
    settings = {"run.num_steps": 3, "eval.interval": 1000, "train.checkpoint.interval": 1, "rollout.restarts": 0}
    run = Run(tmp_path, cluster="local-hosts", settings=settings).start()
    run.until(lambda: run.has_step("rl", 1))
    run.remember()
    (second,) = (each for each in run.family if isinstance(each, psutil.Process) and "node_rank=1" in each.cmdline())
    second.kill()
    assert run.finish() == 2
    name = f"engine-0-node1 (node_rank 1, pid {second.pid} on {socket.gethostname()})"
    assert run.text().splitlines()[-1].startswith(f"slime: {name}: was killed by SIGKILL")
    assert run.strays() == []
    assert run.litter() == []
    run.start().succeed()
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all(row["train/logprob_diff_max"] < 1e-4 for row in steps), "its ranks hold the published weights"
