"""A recorded rollout: the same samples everywhere, made from a seed; and how transformers' own classes are given the
experts that engines recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from slime.types import ADVANTAGES, KEPT_TOKENS, ROLLOUT_LOGPROBS, TrainSample


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


def narrowed(samples: Sequence[TrainSample], vocab_size: int, *, most: int = 9) -> list[TrainSample]:
    """As if engines had drawn each token from 1 to `most` tokens (`slime.types.KEPT_TOKENS`)."""
    generator, found = np.random.default_rng(5), []
    for sample in samples:
        kept = np.zeros((sample.num_response_tokens, most + 1), np.int32)  # one more than are ever kept
        for row, token in zip(kept, sample.tokens[-len(kept) :], strict=True):
            others = generator.permutation(np.delete(np.arange(vocab_size), token))[: generator.integers(0, most)]
            ids = generator.permutation([token, *others])
            row[: len(ids)] = ids + 1
        found.append(sample.with_columns(**{KEPT_TOKENS: kept}))
    return found


@contextmanager
def forced_experts(rows: torch.Tensor, num_experts: int) -> Iterator[None]:
    """Inside, the routers of transformers' own classes choose `rows` [t, layers, k], layer by layer; a row of zeros
    leaves them their own choice."""
    topk, layer = torch.topk, iter(range(rows.size(1)))

    def forcing(scores: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        values, own = topk(scores, *args, **kwargs)
        if scores.size(-1) != num_experts:
            return values, own
        wanted = rows[:, next(layer)].long()
        wanted = torch.where(wanted.any(dim=-1, keepdim=True), wanted, own)
        return scores.gather(-1, wanted), wanted

    with patch.object(torch, "topk", forcing):
        yield
