"""The loss by which a multi-token prediction layer learns: cross-entropy (arXiv 2412.19437, section 2.2) of the tokens
after the next ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from slime.types import MicroBatch
from slime_megatron.train.model.packed.sequences import PackedSequences


@dataclass(frozen=True)
class TokensAhead:
    """What the layer reads of a pack: everything one position ahead within its sequence. Shape letter: t tokens of this
    context-parallel rank.

    Attributes:
        tokens: [1, t] int64, the next token of each.
        labels: [1, t] int64, the one after.
        loss_weights: [t] fp32, of predicting that, as of `PackedSequences`; 0 where there is none.
    """

    tokens: Tensor
    labels: Tensor
    loss_weights: Tensor

    @staticmethod
    def of(packed: PackedSequences) -> TokensAhead | None:
        """Those of a pack; None where no prediction layer is trained."""
        found: TokensAhead | None = packed.given.get(TokensAhead)
        return found


class PredictionLoss:
    """See `slime.models.traits.ExtraLoss`. Response tokens count, each with the weight that it has in the main loss."""

    name, lookahead = "mtp_loss", 1

    def prepare(
        self,
        packed: PackedSequences,
        micro: MicroBatch,
        local: Callable[[np.ndarray], Tensor],
    ) -> None:
        tokens, labels, weights = (
            local(shifted(x, micro.cu_seqlens)) for x in (micro.tokens, micro.labels, micro.loss_weights)
        )
        packed.given[TokensAhead] = TokensAhead(tokens[None], labels[None], weights)

    def of(self, row: Tensor, packed: PackedSequences) -> Tensor:
        ahead = TokensAhead.of(packed)
        assert ahead is not None, "made for every micro-batch"
        return (-row * ahead.loss_weights).sum()


def shifted(values: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    """[num_tokens]: at every position the value of the next one of its sequence, 0 at the last."""
    ahead = np.zeros_like(values)
    ahead[:-1] = values[1:]
    ahead[cu_seqlens[1:] - 1] = 0
    return ahead
