"""A whole run whose estimator keeps something from step to step: it goes on with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slime.checkpoints import CheckpointStore
from tests.running import NO_CHECKPOINTS, Run
from tests.site import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SHORT = """
from slime.types import Verdict

class Short:
    def score(self, sample):
        return Verdict.of(len(sample.response) % 7)

@hookimpl
def slime_rewards():
    return {"short": Short}
"""
"""A reward that an untrained model earns."""
RUNNING = Path(__file__).parent / "third_party/running"


def test_what_an_estimator_keeps_outlives_the_process(site: Site, tmp_path: Path) -> None:
    """One instance sees every step, also of a run that continues: its running mean is that of the rewards of all."""
    files = ("pyproject.toml", "slime_running/__init__.py")
    site.add_project({name: (RUNNING / name).read_text() for name in files})
    site.add("slime-short", SHORT)
    path = os.pathsep.join(filter(None, [str(site.folder), os.environ.get("PYTHONPATH")]))
    settings = {"algo.advantage": "running", "algo.advantage_options.decay": 0.5, "train.checkpoint.interval": 1}
    settings |= {"reward": "short", "run.num_steps": 2, "eval.path": "null"}
    (folder := tmp_path / "run").mkdir()
    run = Run(folder, settings=settings, environment={"PYTHONPATH": path}, forked=True).start().succeed()
    run.settings = {**settings, "run.num_steps": 4}
    run.start().succeed()
    rewards = [row["rollout/reward_mean"] for row in run.rows("rl") if "train/loss" in row]
    assert len(rewards) == 4
    mean = rewards[0]
    for reward in rewards:
        mean = 0.5 * mean + 0.5 * reward
    checkpoint = CheckpointStore(run.path / "checkpoints", keep=1).latest()
    assert checkpoint
    assert checkpoint.driver_state()["estimator"] == {"running": {"means": {"": pytest.approx(mean, rel=1e-12)}}}
    assert len({*rewards}) > 1, "steps differ"


def test_samples_are_kept_of_a_step_that_fails_before_it_trains(tmp_path: Path) -> None:
    """Whoever looks for the reason finds what was sampled, which else is written while trainers work."""
    (tmp_path / "my.py").write_text("def breaks(rewards):\n    return [reward / 0 for reward in rewards]\n")
    settings = {"algo.advantage": "function", "+algo.advantage_options.path": "my.py:breaks"}
    run = Run(tmp_path, settings={**settings, **NO_CHECKPOINTS, "eval.path": "null"}, forked=True).start()
    assert run.finish() != 0
    assert "ZeroDivisionError" in run.text()
    [samples] = (run.path / "samples").glob("step-*.jsonl")
    assert samples.read_text().count("\n") == 16
