"""Supervised fine-tuning: next-token prediction on demonstrations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.objective import LossInputs, LossTerms, Metrics, TrainsOn

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sft:
    """Mean negative log-likelihood of the response tokens (Ouyang et al. 2022, arXiv 2203.02155, section 3.5)."""

    trains_on = TrainsOn.demonstrations
    needs = ()
    entropy_gradient = False

    def metrics(self, columns: Collection[str]) -> Metrics:
        return Metrics(means=("loss", "entropy"))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        logprobs, entropy = scores
        loss = inputs.weighted(-logprobs)
        return LossTerms(loss, {"loss": loss, "entropy": inputs.weighted(entropy)})
