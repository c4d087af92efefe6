"""Whole runs whose steps train on groups that were begun before: nothing too old, nothing lost, nothing twice."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.running import NO_STOP, TINY, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

A_STEP, STEPS = 8, 8
BUSY = {
    "run.num_steps": STEPS,
    "rollout.prompts_per_step": A_STEP,
    "rollout.samples_per_prompt": 8,
    "eval.interval": 4,
    "train.checkpoint.interval": 2,
    **NO_STOP,
}


def trained(run: Run) -> list[str]:
    """Of each sample that steps trained on, the id of its prompt, as `samples/` has it."""
    files = sorted((run.path / "samples").glob("step-*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [row["prompt"] for row in rows]


def steps_of(run: Run) -> list[dict[str, Any]]:
    return [row for row in run.rows("rl") if "train/loss" in row]


def test_a_run_that_may_not_be_ahead_counts_nothing_of_it(finished: Run) -> None:
    steps = steps_of(finished)
    assert [(row["rollout/weight_lag_max"], row["rollout/weight_lag_masked_share"]) for row in steps] == [(0, 0)] * 4
    assert not any("rollout/overlap_share" in row for row in steps)
    counts = Counter(trained(finished))
    assert len(counts) == 4 * TINY["rollout.prompts_per_step"]
    assert set(counts.values()) == {TINY["rollout.samples_per_prompt"]}


def test_a_run_ahead(tmp_path: Path) -> None:
    """Two steps: groups for both are under way, and no token is older than the bound. Penalties are taken from rewards
    meanwhile."""
    bound, penalty = 2, {"algo.kl_coef": 0.01, "algo.kl_in": "reward"}
    run = Run(tmp_path, settings={**BUSY, **penalty, "rollout.max_staleness": bound}, forked=True).start().succeed()
    steps = steps_of(run)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    # A request that waits in a busy engine begins with newer weights. So the machine's speed decides how old tokens
    # are, up to the bound, and how many responses end while trainers work: `benchmarks/staleness.py` has both.
    assert 0 < max(row["rollout/weight_lag_max"] for row in steps) <= bound
    assert all(row["rollout/weight_lag_masked_share"] == 0 for row in steps)
    # Tokens of the very weights that are trained; where a step has none, there is no difference to tell.
    assert max(row.get("train/logprob_diff_max", 0) for row in steps) < 1e-4
    assert [row["step"] for row in run.rows("rl") if "eval/reward_mean" in row] == [0, 4, 8]
    counts = Counter(trained(run))
    assert len(counts) == STEPS * A_STEP
    assert set(counts.values()) == {8}
    assert all(0 <= row["rollout/overlap_share"] <= 1 for row in steps)
    assert 0 < max(row["rollout/staleness_max"] for row in steps) <= bound
    assert [row["rollout/groups_ahead"] for row in steps[: bound + 2]] == [bound * A_STEP] * (bound + 2)
    for left, row in enumerate(reversed(steps)):
        least, most = (min(number, left) * A_STEP for number in (row["rollout/steps_ahead"], bound))
        assert least <= row["rollout/groups_ahead"] <= most
        assert 1 <= row["rollout/steps_ahead"] <= bound
        assert row["trainers/idle_share"] * row["seconds/step"] == pytest.approx(row["seconds/generate"])
        assert 0 <= row["engines/idle_share"] <= 1


def test_a_run_that_was_killed_has_lost_nothing_and_one_whose_rewards_are_all_equal_stops(tmp_path: Path) -> None:
    """In the other two ways to publish: responses are broken off until it is killed, and go on over a publish after.

    The model does not think, and the reward wants what follows </think>: every answer earns 0. The run that goes on
    stops for that after four steps, with a checkpoint, and counts none of those before.
    """
    ahead = {"rollout.max_staleness": 2, "rollout.publish": "abort"}
    run = Run(tmp_path, settings={**BUSY, **ahead, "run.num_steps": 100, "reward": "deepscaler"}).start()
    run.until(lambda: (run.path / "checkpoints/step-000008").exists())  # behind 4 supervised steps
    run.kill(signal.SIGKILL)
    assert run.strays() == []
    saved = max(int(path.name.removeprefix("step-")) for path in (run.path / "checkpoints").glob("step-*"))
    last = saved  # without the supervised ones, and with four more
    run.settings = {**run.settings, "rollout.publish": "keep", "observe.zero_variance_steps": 4}
    run.settings |= {"train.checkpoint.interval": 100}
    assert run.start().finish() == 2
    said = f"step {last}: the rewards of each prompt's samples were equal in 4 steps in a row (every reward is 0)"
    assert said in run.text().splitlines()[-1]
    assert (run.path / f"checkpoints/step-{last + 4:06}").exists()
    counts = Counter(trained(run))
    assert len(counts) == last * A_STEP
    assert set(counts.values()) == {8}, "a prompt was trained twice, or not with all of its samples"
    steps = steps_of(run)
    assert {row["rollout/groups_ahead"] for row in steps[:last]} <= {A_STEP, 2 * A_STEP}
    assert all(row["rollout/staleness_max"] <= most for row, most in zip(steps[:4], [0, 1, 2, 2], strict=True))
    assert max(row["rollout/staleness_max"] for row in steps[4:]) <= 2
    assert max(row.get("train/logprob_diff_max", 0) for row in steps) < 1e-4
