"""What samples that share a prompt take of a micro-batch."""

from __future__ import annotations

import numpy as np
import pytest

from slime.config.schema import LossMean
from slime.models.blocks import KEYS_A_ROW, Attention
from slime.train.bins import Shape, Unit
from slime.train.packing import pack
from slime.types import TrainSample


def test_samples_share_a_prompt_as_far_as_their_keys_have_room() -> None:
    """Sixteen answers of one token to a prompt of 100 have 1,616 keys, and 116 rows."""
    prompt = np.arange(100)
    samples = [TrainSample(np.append(prompt, i), np.ones(1, np.float32)) for i in range(16)]
    (batch,) = pack(samples, num_dp=1, align=1, max_tokens=200, loss_mean=LossMean.token, share_below=1.0)
    found = batch.micro_batches[0]
    assert len(found) == 4  # with room for seven keys of prompts in each, groups are halved twice
    for micro in found:
        assert micro.prefixes is not None
        assert len(micro.tokens) + micro.prefixes.sum() <= KEYS_A_ROW * 200
    (apart,) = pack(samples, num_dp=1, align=1, max_tokens=200, loss_mean=LossMean.token)
    assert len(apart.micro_batches[0]) == 16


def test_a_shared_prompt_counts_once_as_work() -> None:
    """4 + 6 and 4 + 2 tokens, the first whole, the second without 3 of its prompt: tokens and squares of attention."""
    tokens = np.arange(10)
    samples = [TrainSample(tokens, np.ones(6, np.float32)), TrainSample(tokens[:6], np.ones(2, np.float32))]
    shape = Shape(1, 1, 1, 100, True, (Attention(2 / 10),))
    assert shape.sizes(samples, [Unit([0, 1], [0, 3])]).work == pytest.approx((10 + 100 / 10) + (3 + (36 - 9) / 10))
