"""Long responses, and engines that are slow or hang: the real loop, pipeline and buffer on a virtual clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from slime.algo.advantages import GroupMean
from slime.builtins import KeepAll, Single
from slime.config.schema import RewardConfig, RolloutConfig, SamplingConfig
from slime.engine_client.engine_set import EngineSet
from slime.errors import NoAnswer
from slime.sampling.buffer import FifoBuffer
from slime.sampling.loop import Collected, Rollout
from slime.sampling.sampler import Sampler
from slime.sampling.samples import spread
from slime.types import Sample
from tests.advantages import to_train_samples
from tests.engine_client.scripted_engine import Letters, Scorer
from tests.engine_client.virtual_clock import VirtualEngine, run

from .scripted_rollout import Prompts

GRPO = GroupMean(normalize_std=True)

STEPS, LONGEST, LAG = 40, 4000, 2
PATIENCE_S = 600.0


def length(prompt_token: int, seed: int) -> int:
    """Lognormal, as responses' lengths are: a median of 200, and one of a hundred above 2000."""
    return min(LONGEST, 1 + int(math.exp(random.Random(seed).gauss(math.log(200), 1.0))))


async def collect(
    prompts: Prompts,
    buffer: FifoBuffer,
    engine: VirtualEngine,
    steps: int = STEPS,
    back_after_s: float | None = None,
    **changes: Any,
) -> list[Collected]:
    """`back_after_s`: the engine has died, and comes back then."""
    engines = EngineSet([engine])
    if back_after_s is not None:
        engines.lose(engine)
        asyncio.get_running_loop().call_later(back_after_s, engines.regain, engine)
    values = {
        "prompts_per_step": 8,
        "samples_per_prompt": 4,
        "over_sampling": 2.0,
        "max_weight_lag": LAG,
        "request_timeout_s": PATIENCE_S,
        "sampling": SamplingConfig(max_response_tokens=LONGEST),
    }
    cfg = RolloutConfig(**values | changes)
    sampler = Sampler(cfg, RewardConfig(name="scripted"), 5, engines, Letters(), Single(), Scorer())
    rollout = Rollout(cfg, sampler, prompts=prompts, buffer=buffer, sample_filter=KeepAll())
    collected = []
    for engine.version in range(steps):
        collected.append(await rollout.collect(engine.version))
    return collected


def test_no_response_starves_and_no_token_is_generated_twice():
    prompts, buffer, engine = Prompts(), FifoBuffer(), VirtualEngine(length)
    steps = run(collect(prompts, buffer, engine))
    kept = [sample for step in steps for group in step.groups for sample in group.samples]
    waiting = [sample for group in buffer.take(len(buffer), STEPS) for sample in group.samples]
    assert {sample.prompt.label for sample in kept} >= set(range(prompts.taken // 2)), "a prompt was never trained on"
    assert max(num_versions(sample) for sample in kept) > 2 * LAG, "none was so long that it could have starved"
    assert engine.num_tokens == sum(sample.num_sampled for sample in [*kept, *waiting])


def test_an_engine_that_comes_back_is_waited_for_longer_than_one_that_is_silent():
    (step,) = run(collect(Prompts(), FifoBuffer(), VirtualEngine(length), 1, back_after_s=3 * PATIENCE_S))
    assert len(step.groups) == 8


def test_the_lag_of_tokens_is_measured_and_what_lags_too_far_is_not_trained_on():
    prompts, buffer, engine = Prompts(), FifoBuffer(), VirtualEngine(length)
    num_masked = 0
    for version, step in enumerate(run(collect(prompts, buffer, engine))):
        lags = Counter[int]()
        for span in (span for group in step.groups for sample in group.samples for span in sample.segments[0].spans):
            lags[version - span.version] += span.num_tokens
        too_old = sum(count for lag, count in lags.items() if lag > LAG)
        assert step.stats["rollout/weight_lag_max"] == max(lags)
        assert math.isclose(step.stats["rollout/weight_lag_mean"], sum(lags.elements()) / lags.total())
        assert math.isclose(step.stats["rollout/weight_lag_masked_share"], too_old / lags.total())
        trained = to_train_samples(step.groups, GRPO, version, LAG)
        young = [[num_young(sample, version) for sample in group.samples] for group in step.groups]
        compared = [tokens for tokens in young if sum(map(bool, tokens)) > 1]
        assert sum(map(sum, young)) == lags.total() - too_old
        assert sum(sample.loss_mask.sum() for sample in trained) == sum(map(sum, compared))
        assert step.stats["rollout/weight_lag_masked_groups"] == len(young) - len(compared)
        num_masked += too_old
    assert num_masked > 0


@pytest.mark.parametrize("over_sampling", [1.0, 1.5, 2.0])
def test_optimizer_steps_have_responses_of_like_length(over_sampling: float):
    """In the order the groups were begun, the first of four steps had responses five times as long as the last one."""
    many = {"prompts_per_step": 32, "over_sampling": over_sampling}
    sums = np.zeros(4)
    for version, step in enumerate(run(collect(Prompts(), FifoBuffer(), VirtualEngine(length), 20, **many))):
        groups = spread(step.groups, 4, version)
        lengths = [[sample.num_sampled for sample in group.samples] for group in groups]
        tokens = np.asarray(lengths).reshape(4, -1).sum(1)
        assert tokens.max() < 1.2 * tokens.min()
        sums += tokens
    assert sums.max() < 1.03 * sums.min()


def test_a_step_says_how_long_its_engines_were_busy():
    """Of each step its own, whatever the steps before it took."""
    cfg = RolloutConfig(prompts_per_step=2, samples_per_prompt=2, sampling=SamplingConfig(max_response_tokens=LONGEST))

    async def collected():
        engines = [VirtualEngine(lambda prompt, seed: 10 + 20 * (prompt % 2)) for _ in range(2)]
        sampler = Sampler(cfg, RewardConfig(name="scripted"), 5, EngineSet(engines), Letters(), Single(), Scorer())
        rollout = Rollout(cfg, sampler, prompts=Prompts(), buffer=FifoBuffer(), sample_filter=KeepAll())
        return [(await rollout.collect(0)).stats for _ in range(2)]

    for stats in run(collected()):
        assert (stats["engines/seconds_max"], stats["engines/seconds_mean"], stats["engines/slowest"]) == (30, 20, 1)


def num_young(sample: Sample, version: int) -> int:
    return sum(span.num_tokens for span in sample.segments[0].spans if version - span.version <= LAG)


def num_versions(sample: Sample) -> int:
    spans = sample.segments[0].spans
    return spans[-1].version - spans[0].version if spans else 0


def test_a_response_may_take_hours_and_wait_for_days():
    engine = VirtualEngine(lambda prompt_token, seed: 32768)
    sampling = SamplingConfig(max_response_tokens=32768)
    few = {"prompts_per_step": 2, "over_sampling": 1.0, "max_requests_per_engine": 1, "sampling": sampling}
    (step,) = run(collect(Prompts(), FifoBuffer(), engine, 1, **few))
    assert step.stats["rollout/num_tokens"] == 2 * 4 * 32768
    assert step.stats["rollout/truncated_share"] == 0


def hang(engine: VirtualEngine, **changes: Any) -> tuple[NoAnswer, float]:
    """The error that ends a step, and when it came."""

    async def main() -> tuple[NoAnswer, float]:
        with pytest.raises(NoAnswer) as raised:
            await collect(Prompts(), FifoBuffer(), engine, 1, **changes)
        return raised.value, asyncio.get_running_loop().time()

    ended: tuple[NoAnswer, float] = run(main())
    return ended


def test_an_engine_that_stops_generating_is_named():
    engine = VirtualEngine(lambda prompt_token, seed: 5000)
    engine.hangs_at = 1000.0
    error, when = hang(engine, over_sampling=1.0)
    assert str(error).startswith("engine virtual: no token was generated for any of its 32 requests in 600 s")
    assert engine.hangs_at + PATIENCE_S <= when <= engine.hangs_at + 3 * PATIENCE_S


def test_requests_that_an_engine_has_lost_are_missed():
    class Forgetful(VirtualEngine):
        async def load(self) -> tuple[int, int]:
            return 0, 0

    error, _ = hang(Forgetful(lambda prompt_token, seed: 5000), over_sampling=1.0)
    assert str(error).startswith("the engines: they have no request, but 32 were not answered in 600 s")


def test_an_engine_that_does_not_answer_an_abort_hangs():
    engine = VirtualEngine(lambda prompt_token, seed: 5 if prompt_token < 8 else 5000)
    engine.hangs_at = 5.0
    error, when = hang(engine)
    assert str(error).startswith("the engines: 32 aborted requests were not answered in 600 s")
    assert when < 5 + 2 * PATIENCE_S
