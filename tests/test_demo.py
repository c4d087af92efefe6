"""The command that `make demo` runs, and what the README promises of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.observe.metrics import HELD_OUT
from tests.running import Run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_laptop_run_learns_to_add(tmp_path: Path) -> None:
    """At least 0.35 more, to over 0.85, on held-out problems that share none with the training sets: after a quarter of
    its reinforcement learning, which is no other for being cut short."""
    run = Run(tmp_path, shortened={"run.num_steps": 10}, forked=True).start().succeed()
    held_out = [row[HELD_OUT] for row in run.rows("rl") if HELD_OUT in row]
    assert held_out[-1] > 0.85
    assert held_out[-1] - held_out[0] >= 0.35

    before = {file: file.stat().st_mtime_ns for file in run.path.rglob("*")}
    again = Run(tmp_path, shortened=run.shortened, silence_s=60).start().succeed()
    assert again.text().endswith(
        "it: nothing is left to train: 310 of 310 steps are done. Raise `run.num_steps` to train on; for a new run set "
        "another `run.name`, or `run.resume=restart`.\n"
    )
    other = Run(tmp_path, shortened=run.shortened, settings={"train.optimizer.lr": 0.001}, silence_s=60).start()
    assert other.finish() == 2
    assert "with other keys (train.optimizer.lr: 0.0002 -> 0.001). Set another `run.name`" in other.text()
    assert {file: file.stat().st_mtime_ns for file in run.path.rglob("*")} == before
