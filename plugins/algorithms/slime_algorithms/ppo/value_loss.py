"""What a critic learns: the returns of tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.estimator import RETURNS, VALUES
from slime.objective import Column, LossInputs, LossTerms, Metrics, Source, TrainsOn

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ValueLoss:
    """Half the squared error of the values V against the returns G, with PPO's clip.

        1/2 max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2)

    A value that has moved by more than c towards its return since the samples were scored has no gradient.

    Metrics: loss; clip_fraction, the share of loss tokens without a gradient; value_mean and return_mean.

    Args:
        value_clip: c; None clips nothing.
    """

    value_clip: float | None = None

    trains_on = TrainsOn.rollouts

    needs = Column(VALUES, Source.critic), Column(RETURNS, Source.critic)

    def metrics(self, columns: Collection[str]) -> Metrics:
        return Metrics(("loss",), ("clip_fraction", "value_mean", "return_mean"))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        import torch

        values, old, returns = scores[0], inputs.columns[VALUES], inputs.columns[RETURNS]
        errors = clipped = (values - returns).square()
        if self.value_clip is not None:
            clipped = (old + (values - old).clamp(-self.value_clip, self.value_clip) - returns).square()
        loss = inputs.weighted(0.5 * torch.maximum(errors, clipped))
        numbers = ((clipped > errors).to(values.dtype), values.detach(), returns)
        names = self.metrics(()).token_sums
        return LossTerms(loss, {"loss": loss}, dict(zip(names, map(inputs.count, numbers), strict=True)))
