"""Two objectives that read a column of the data set: `algo=weighted_sft` and `algo=weighted_reinforce`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.algo.policy_gradient import PolicyGradient, Surrogate
from slime.hookspecs import hookimpl
from slime.objective import Column, LossTerms, Metrics, Objective, Source, TrainsOn
from slime.types import ADVANTAGES


@dataclass(frozen=True)
class WeightedSft:
    """Supervised fine-tuning: -w log pi of each token of an answer, with w from the row's column."""

    column: str = "weight"
    trains_on = TrainsOn.demonstrations
    entropy_gradient = False

    @property
    def needs(self) -> Sequence[Column]:
        return (Column(self.column, Source.data),)

    def metrics(self, columns: Collection[str]) -> Metrics:
        return Metrics(means=("loss",), token_sums=("weight",))

    def loss(self, scores: Any, inputs: Any) -> LossTerms:
        weights = inputs.columns[self.column]
        loss = inputs.weighted(-weights * scores[0])
        return LossTerms(loss, {"loss": loss}, {"weight": inputs.count(weights)})


@dataclass(frozen=True, kw_only=True)
class WeightedReinforce(PolicyGradient):
    """REINFORCE: -w A log pi, with w from the column of the prompt's row."""

    column: str = "weight"

    @property
    def sees(self) -> Sequence[str]:
        return ("weight",)

    @property
    def needs(self) -> Sequence[Column]:
        return (*super().needs, Column(self.column, Source.data))

    def surrogate(self, logprobs: Any, old: Any, inputs: Any) -> Surrogate:
        weights = inputs.columns[self.column]
        return Surrogate(-weights * inputs.columns[ADVANTAGES] * logprobs, {"weight": weights})


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"weighted_sft": WeightedSft, "weighted_reinforce": WeightedReinforce}
