"""Objective `function`: a function from log-probs and other columns to the loss of each token, or a class with the
members of `slime.objective.Objective`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from slime.by_path.called import Form, Own, PathOptions
from slime.objective import Column, LossInputs, LossTerms, Metrics, Objective, Source, TrainsOn
from slime.types import ADVANTAGES, IS_CURRENT, ROLLOUT_LOGPROBS

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = {
    **{name: Column(name) for name in (ADVANTAGES, ROLLOUT_LOGPROBS, IS_CURRENT)},
    "old_logprobs": Column("old_logprobs", Source.policy),
    "ref_logprobs": Column("ref_logprobs", Source.reference),
}


@dataclass
class ObjectiveOptions(PathOptions):
    everywhere: ClassVar[bool] = True
    form: ClassVar[Form] = Form(
        ("logprobs", "entropy", "loss_mask", *COLUMNS), methods=("trains_on", "needs", "metrics", "loss")
    )


def own_objective(**options: Any) -> Objective:
    own = Own(ObjectiveOptions(**options), "algo.path")
    made: Objective = own.made or FunctionObjective(own)
    return made


class FunctionObjective:
    """Learns from rollouts. The function gets what it names of log-probs and entropies [t], with gradient, and columns
    [t], and returns the loss of each token, [t]."""

    trains_on = TrainsOn.rollouts

    def __init__(self, own: Own) -> None:
        self._own = own
        self.needs = tuple(column for name, column in COLUMNS.items() if name in own.takes)
        self.entropy_gradient = "entropy" in own.takes

    def metrics(self, columns: Collection[str]) -> Metrics:
        return Metrics(means=("loss",), token_sums=("entropy",))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        logprobs, entropy = scores
        given = {"logprobs": logprobs, "entropy": entropy, "loss_mask": inputs.loss_mask, **inputs.columns}
        values = self._own.call(given)
        if getattr(values, "shape", None) != logprobs.shape:
            raise self._own.returned(values, f"a tensor of {[*logprobs.shape]}, the loss of each token")
        loss = inputs.weighted(values)
        return LossTerms(loss, {"loss": loss}, {"entropy": inputs.count(entropy.detach())})
