"""The buffer policy `staleness` of slime-filters in a sampling loop."""

from __future__ import annotations

import pytest

from slime.plugins import load
from tests.engine_client.scripted_engine import ScriptedEngine
from tests.sampling.scripted_rollout import VERSION, run

LONG = dict.fromkeys(range(1, 99, 2), 0.05)
"""Seconds a token of odd prompts, which end too late for the step that begins them."""


@pytest.mark.parametrize("when_old", ["refresh", "drop", "keep"])
def test_a_loop_has_no_group_that_is_older_than_it_may_be(when_old: str) -> None:
    """With a bound of 0 no token of an earlier version is trained on, unless old groups are kept."""
    engine = ScriptedEngine(token_s=LONG)
    changes = {"prompts_per_step": 2, "over_sampling": 2.0}
    collected = run(engine, 3, buffer=load().buffers.create("staleness", max_lag=0, when_old=when_old), **changes)
    ages = [
        VERSION + step - span.version
        for step, each in enumerate(collected)
        for kept in each.groups
        for sample in kept.samples
        for span in sample.spans
    ]
    assert (max(ages) > 0) is (when_old == "keep")
    dropped = sum(each.stats.get("buffer/drop/too_old", 0.0) for each in collected)
    assert (dropped > 0) is (when_old == "drop")
    assert all(sample.num_sampled == 4 for each in collected for kept in each.groups for sample in kept.samples)
