"""What becomes of long responses under over-sampling: the real loop, pipeline and buffer on a virtual clock."""

from __future__ import annotations

import math
import random
from collections import Counter

from slime.builtins import KeepAll
from slime.config.schema import AlgoConfig, RewardConfig, RolloutConfig, SamplingConfig
from slime.rollout.buffer import FifoBuffer
from slime.rollout.loop import Collected, Rollout
from slime.rollout.samples import to_train_samples
from slime.types import Sample

from .scripted_engine import Letters, Scorer
from .test_loop import Prompts
from .virtual_clock import VirtualEngine, run

STEPS, LONGEST, LAG = 40, 4000, 2


def length(prompt_token: int, seed: int) -> int:
    """Lognormal, as responses' lengths are: a median of 200, and one of a hundred above 2000."""
    return min(LONGEST, 1 + int(math.exp(random.Random(seed).gauss(math.log(200), 1.0))))


async def collect(prompts: Prompts, buffer: FifoBuffer, engine: VirtualEngine) -> list[Collected]:
    cfg = RolloutConfig(
        prompts_per_step=8,
        samples_per_prompt=4,
        over_sampling=2.0,
        max_weight_lag=LAG,
        sampling=SamplingConfig(max_response_tokens=LONGEST),
    )
    rollout = Rollout(
        cfg,
        RewardConfig(name="scripted"),
        5,
        tokenizer=Letters(),
        prompts=prompts,
        buffer=buffer,
        sample_filter=KeepAll(),
        scorer=Scorer(),
        engines=[engine],
    )
    collected = []
    for engine.version in range(STEPS):
        collected.append(await rollout.collect(engine.version))
    return collected


def test_no_response_starves_and_no_token_is_generated_twice():
    prompts, buffer, engine = Prompts(), FifoBuffer(), VirtualEngine(length)
    steps = run(collect(prompts, buffer, engine))
    kept = [sample for step in steps for group in step.groups for sample in group.samples]
    waiting = [sample for group in buffer.take(len(buffer), STEPS) for sample in group.samples]
    assert {sample.prompt.label for sample in kept} >= set(range(prompts.taken // 2)), "a prompt was never trained on"
    assert max(num_versions(sample) for sample in kept) > 2 * LAG, "none was so long that it could have starved"
    assert engine.num_tokens == sum(len(sample.response_tokens) for sample in [*kept, *waiting])


def test_the_lag_of_tokens_is_measured_and_what_lags_too_far_is_not_trained_on():
    prompts, buffer, engine = Prompts(), FifoBuffer(), VirtualEngine(length)
    num_masked = 0
    for version, step in enumerate(run(collect(prompts, buffer, engine))):
        lags = Counter[int]()
        for span in (span for group in step.groups for sample in group.samples for span in sample.spans):
            lags[version - span.version] += span.num_tokens
        too_old = sum(count for lag, count in lags.items() if lag > LAG)
        assert step.stats["rollout/weight_lag_max"] == max(lags)
        assert math.isclose(step.stats["rollout/weight_lag_mean"], sum(lags.elements()) / lags.total())
        assert math.isclose(step.stats["rollout/weight_lag_masked_share"], too_old / lags.total())
        trained = to_train_samples(step.groups, AlgoConfig(), version, LAG)
        assert sum(sample.loss_mask.sum() for sample in trained) == lags.total() - too_old
        num_masked += too_old
    assert num_masked > 0


def num_versions(sample: Sample) -> int:
    return sample.spans[-1].version - sample.spans[0].version if sample.spans else 0
