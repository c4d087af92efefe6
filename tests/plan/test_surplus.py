"""The predicted share of stale tokens: against the loop, whose server takes a hundredth of a second for a token, and
against what has to be so."""

from __future__ import annotations

import random

import pytest

from slime.config.choices import Surplus
from slime.config.rollout import RolloutConfig
from slime.plan.surplus import stale_share
from tests.engine_client.scripted_engine import ScriptedEngine
from tests.sampling.scripted_rollout import VERSION, config, run

MOST, STEPS, FIRST = 30, 20, 4
"""Tokens of the longest response; steps, and those before the mean."""
EVEN = dict(enumerate(random.Random(7).choices(range(1, MOST + 1), k=400)))


@pytest.mark.parametrize(("over_sampling", "fixed_prompts"), [(2.0, False), (2.0, True), (1.25, False)])
def test_the_loop_trains_as_many_stale_tokens_as_were_predicted(over_sampling: float, fixed_prompts: bool) -> None:
    """A tenth is how far sixteen steps of eight groups are from the mean of many."""
    cfg = {"prompts_per_step": 8, "samples_per_prompt": 1, "over_sampling": over_sampling}
    cfg |= {"fixed_prompts": fixed_prompts, "max_response_tokens": MOST}
    engine = ScriptedEngine(lengths=EVEN, token_s=dict.fromkeys(EVEN, 0.01))
    stale = trained = 0
    for version, step in enumerate(run(engine, STEPS, **cfg), VERSION):
        for span in (span for group in step.groups for sample in group.samples for span in sample.spans):
            if version >= VERSION + FIRST:
                stale += (span.version < version) * span.num_tokens
                trained += span.num_tokens
    assert stale_share(config(**cfg), in_flight=16) == pytest.approx(stale / trained, abs=0.1)


def test_what_is_dropped_leaves_no_stale_token_and_what_waits_ahead_is_not_counted() -> None:
    assert stale_share(RolloutConfig(over_sampling=2.0, surplus=Surplus["drop"]), 256) == 0
    assert stale_share(RolloutConfig(), 256) == stale_share(RolloutConfig(over_sampling=2.0, max_staleness=1), 256) == 0
    assert 0 < stale_share(RolloutConfig(over_sampling=2.0), 256) < 1


def test_a_large_step_is_played_in_proportion() -> None:
    small, large = (RolloutConfig(prompts_per_step=num, over_sampling=2.0) for num in (32, 3200))
    assert stale_share(large, 25_600) == stale_share(small, 256)
