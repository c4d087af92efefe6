"""A recorded rollout: the same samples everywhere, made from a seed."""

from __future__ import annotations

import numpy as np

from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS, TrainSample


def recorded_samples(
    num_samples: int, vocab_size: int, *, seed: int = 0, shortest: int = 6, longest: int = 40
) -> list[TrainSample]:
    """Samples of unequal length with gaps in their loss masks.

    The rollout log-probs lie around those of a model that knows nothing, so that probability ratios against them
    spread around 1 and some are clipped.
    """
    generator = np.random.default_rng(seed)
    return [_sample(generator, vocab_size, shortest, longest) for _ in range(num_samples)]


def _sample(generator: np.random.Generator, vocab_size: int, shortest: int, longest: int) -> TrainSample:
    num_tokens = int(generator.integers(shortest, longest + 1))
    num_response_tokens = int(generator.integers(1, num_tokens - 1))
    guess = np.full(num_response_tokens, -np.log(vocab_size))
    return TrainSample(
        tokens=generator.integers(0, vocab_size, num_tokens),
        loss_mask=(generator.random(num_response_tokens) < 0.9).astype(np.float32),
        columns={
            ADVANTAGES: np.full(num_response_tokens, generator.normal(), np.float32),
            ROLLOUT_LOGPROBS: (guess + generator.normal(0, 0.3, num_response_tokens)).astype(np.float32),
        },
    )
