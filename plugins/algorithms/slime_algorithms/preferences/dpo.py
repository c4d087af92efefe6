"""Direct preference optimisation, and identity preference optimisation, which differ in the loss of a margin."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.objective import Column, LossInputs, LossTerms, Metrics, Source, TrainsOn
from slime.types import PREFERENCE

if TYPE_CHECKING:
    from torch import Tensor

REFERENCE = "reference"


class Form(enum.Enum):
    """The loss of a pair's margin."""

    sigmoid = "sigmoid"
    identity = "identity"


@dataclass(frozen=True)
class Dpo:
    """The loss of a pair is that of its margin m = log pi/ref (chosen) - log pi/ref (rejected), each a sum over the
    answer's tokens.

        sigmoid    -(1 - e) log sigmoid(beta m) - e log sigmoid(-beta m)      arXiv 2305.18290, equation 7; e: section 3
                                                                              of arXiv 2403.00409
        identity   (m - 1 / (2 beta))^2                                       arXiv 2310.12036, equation 17

    Args:
        beta: strength of the pull to the reference model, which is the one that the stage starts from.
        form: the loss of a margin.
        label_smoothing: e, the share of pairs that are taken to be labelled the wrong way round; of `sigmoid`.

    Raises:
        ValueError: beta is not above 0, e is not from 0 to below 0.5, or e is given with `identity`.
    """

    beta: float = 0.1
    form: Form = Form.sigmoid
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta must be above 0, got {self.beta:g}")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing must be from 0 to below 0.5, got {self.label_smoothing:g}")
        if self.label_smoothing and self.form is Form.identity:
            raise ValueError("label_smoothing does nothing with form=identity")

    entropy_gradient = False

    trains_on = TrainsOn.pairs

    needs = Column(PREFERENCE), Column(REFERENCE, Source.reference)

    def metrics(self, columns: Collection[str]) -> Metrics:
        return Metrics(means=("loss", "accuracy", "margin", "chosen_reward", "rejected_reward"))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        """Its metrics are means over pairs: `accuracy`, the share of those with a margin above 0; `margin`, beta m;
        and the two rewards that it is the difference of, beta log pi/ref."""
        assert inputs.sum_by_attempt, "both answers of a pair stand in one micro-batch"
        gained = self.beta * (scores[0] - inputs.columns[REFERENCE])
        preference = inputs.columns[PREFERENCE]
        chosen, rejected = (inputs.sum_by_attempt(gained * (preference == sign)) for sign in (1, -1))
        margin = chosen - rejected
        loss = inputs.weighted(self._of_margin(margin))
        means = {
            "loss": loss,
            "accuracy": inputs.weighted((margin > 0).to(margin.dtype)),
            "margin": inputs.weighted(margin),
        }
        means |= {"chosen_reward": inputs.weighted(chosen), "rejected_reward": inputs.weighted(rejected)}
        return LossTerms(loss, means)

    def _of_margin(self, margin: Tensor) -> Tensor:
        from torch.nn.functional import logsigmoid

        if self.form is Form.identity:
            return (margin / self.beta - 1 / (2 * self.beta)).square()
        wrong = self.label_smoothing
        return -(1 - wrong) * logsigmoid(margin) - wrong * logsigmoid(-margin)
