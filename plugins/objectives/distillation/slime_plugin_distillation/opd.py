"""On-policy distillation: a teacher judges each token that the model itself sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.algo.grpo import Grpo
from slime.contracts import Column, LossInputs, LossTerms, Metrics, Source
from slime.types import ADVANTAGES

if TYPE_CHECKING:
    from torch import Tensor

TEACHER_LOGPROBS = "teacher_logprobs"


@dataclass(frozen=True, kw_only=True)
class Opd(Grpo):
    """GRPO's loss with the advantage A of a token replaced by

        A - teacher_coef sg[log pi - log pi_teacher]

    Over samples of pi, log pi - log pi_teacher is the reverse divergence KL(pi, pi_teacher) at a token's place (Agarwal
    et al. 2023, arXiv 2306.13649; Thinking Machines Lab 2025, "On-policy distillation"). Its gradient, with the prefix
    held constant, is what this loss has in expectation: exactly, also after several optimizer steps, as long as no
    bound acts, because pi is the current one and the ratio corrects for where samples come from.

    `teacher_kl` is its mean over the loss tokens, in nats.

    Args:
        teacher_coef: weight of the teacher beside the advantages of rewards.

    Raises:
        ValueError: teacher_coef is not above 0.
    """

    teacher_coef: float = 1.0

    def __post_init__(self) -> None:
        if not self.teacher_coef > 0:
            raise ValueError(f"teacher_coef must be above 0, got {self.teacher_coef:g}")

    @property
    def needs(self) -> Sequence[Column]:
        return *super().needs, Column(TEACHER_LOGPROBS, Source.teacher)

    def metrics(self, columns: Collection[str]) -> Metrics:
        found = super().metrics(columns)
        return dataclasses.replace(found, token_sums=(*found.token_sums, "teacher_kl"))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        columns = inputs.columns
        gap = scores[0].detach() - columns[TEACHER_LOGPROBS]
        judged = {**columns, ADVANTAGES: columns[ADVANTAGES] - self.teacher_coef * gap}
        terms = super().loss(scores, dataclasses.replace(inputs, columns=judged))
        return dataclasses.replace(terms, token_sums={**terms.token_sums, "teacher_kl": inputs.count(gap)})
