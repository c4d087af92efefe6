"""What a rank's tensors of a micro-batch say of the token behind the next one."""

from __future__ import annotations

import numpy as np

from slime.config.schema import LossMean
from slime.train.packing import pack
from slime.types import TrainSample
from slime_megatron.multi_token_prediction.loss import shifted


def test_nothing_is_looked_up_beyond_the_end_of_a_sequence() -> None:
    ahead = shifted(np.array([1, 2, 3, 4, 5, 6]), np.array([0, 1, 4, 6], np.int32))
    assert ahead.tolist() == [0, 3, 4, 0, 6, 0]


def test_tokens_that_count_are_predicted_from_the_token_before_the_last() -> None:
    """Padded to five: [10 11 12 13 0], whose last two are the response, and [20 21 22 0 0], whose last one is."""
    samples = [
        TrainSample(np.array([10, 11, 12, 13]), np.ones(2, np.float32)),
        TrainSample(np.array([20, 21, 22]), np.ones(1, np.float32)),
    ]
    [batch] = pack(samples, num_dp=1, align=5, max_tokens=10, loss_mean=LossMean.token)
    [[micro]] = batch.micro_batches
    tokens, labels, weights = (shifted(x, micro.cu_seqlens) for x in (micro.tokens, micro.labels, micro.loss_weights))
    assert tokens.tolist() == [11, 12, 13, 0, 0, 21, 22, 0, 0, 0]
    assert labels.tolist() == [12, 13, 0, 0, 0, 22, 0, 0, 0, 0]
    third = np.float32(1 / 3)
    assert weights.tolist() == [third, third, 0, 0, 0, third, 0, 0, 0, 0]
