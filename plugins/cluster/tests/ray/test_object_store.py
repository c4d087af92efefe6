"""How large Ray's object store is."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from slime.config.schema import LossMean, RolloutConfig, SamplingConfig, SftConfig, SlimeConfig
from slime.train.packing import pack
from slime.types import TrainSample
from slime_cluster.ray.starter import SMALL_CALLS_BYTES, object_store_bytes


def sample(num_prompt_tokens: int, num_response_tokens: int) -> TrainSample:
    values = np.ones(num_response_tokens, np.float32)
    tokens = np.arange(num_prompt_tokens + num_response_tokens)
    return TrainSample(tokens, values, dict.fromkeys(("advantages", "rollout_logprobs", "is_current"), values))


def store_of(cfg: SlimeConfig) -> int:
    return object_store_bytes(cfg.algo, cfg.rollout, cfg.sft, cfg.train.max_tokens_per_micro_batch)


@pytest.mark.parametrize("num_dp", [1, 4])
def test_the_largest_batch_fits(num_dp: int) -> None:
    sampling = SamplingConfig(max_response_tokens=1000)
    rollout = RolloutConfig(prompts_per_step=8, samples_per_prompt=8, max_prompt_tokens=99, sampling=sampling)
    cfg = SlimeConfig(rollout=rollout)
    batches = pack(
        [sample(99, 1000)] * 64,
        num_dp=num_dp,
        align=64,
        max_tokens=2400,
        loss_mean=LossMean.token,
        num_optimizer_steps=2,
    )
    shares = [[batch.share(rank) for batch in batches] for rank in range(num_dp)]
    held = sum(len(pickle.dumps(share, protocol=5)) for share in shares)
    assert held < store_of(cfg) - SMALL_CALLS_BYTES < 1.2 * held


def test_demonstrations_count_where_they_are_more() -> None:
    cfg = SlimeConfig()
    cfg.algo.name, cfg.rollout.prompts_per_step = "grpo", 1
    without = store_of(cfg)
    cfg.sft = SftConfig(num_steps=1, batch_size=1000)
    assert store_of(cfg) > without
    cfg.sft.num_steps = 0
    assert store_of(cfg) == without
