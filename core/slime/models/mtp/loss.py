"""The loss by which a multi-token prediction layer learns: cross-entropy (arXiv 2412.19437, section 2.2) of the tokens
after the next ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from slime.models.packed.attention import PackedSequences, TokensAhead
from slime.types import MicroBatch


class PredictionLoss:
    """See `slime.models.traits.ExtraLoss`. Response tokens count, each with the weight that it has in the main loss."""

    name = "mtp_loss"

    def prepare(
        self,
        packed: PackedSequences,
        micro: MicroBatch,
        local: Callable[[np.ndarray], Tensor],
        num_step_tokens: int,
    ) -> None:
        tokens, labels, weights = (
            local(shifted(x, micro.cu_seqlens)) for x in (micro.tokens, micro.labels, micro.loss_weights)
        )
        packed.ahead = TokensAhead(tokens[None], labels[None], weights, weights * num_step_tokens)

    def of(self, row: Tensor, packed: PackedSequences) -> Tensor:
        assert packed.ahead is not None, "made for every micro-batch"
        return (-row * packed.ahead.loss_weights).sum()


def shifted(values: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    """[num_tokens]: at every position the value of the next one of its sequence, 0 at the last."""
    ahead = np.zeros_like(values)
    ahead[:-1] = values[1:]
    ahead[cu_seqlens[1:] - 1] = 0
    return ahead
