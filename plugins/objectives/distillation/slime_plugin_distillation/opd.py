"""On-policy distillation: a teacher judges each token that the model itself sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.algo.grpo import Grpo
from slime.contracts import Column, LossInputs, LossTerms, Metrics, Source
from slime.types import ADVANTAGES, TrainSample

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
        teacher_url: address of an SGLang server with the teacher; None: the trainers hold it (`algo.teacher`).
        teacher_engines: or the engine group of the run that has the teacher (`rollout.engines.NAME.model`).
        teacher_key_env: environment variable that holds the key which the server asks for (its `--api-key`), if any.

    Raises:
        ValueError: teacher_coef is not above 0, teacher_url is no address, teacher_key_env is set without it, or both
            say where the teacher is.
    """

    teacher_coef: float = 1.0
    teacher_url: str | None = None
    teacher_engines: str | None = None
    teacher_key_env: str | None = None

    def __post_init__(self) -> None:
        if not self.teacher_coef > 0:
            raise ValueError(f"teacher_coef must be above 0, got {self.teacher_coef:g}")
        if self.teacher_url is not None and not self.teacher_url.startswith(("http://", "https://")):
            raise ValueError(f"teacher_url must begin with http:// or https://, got '{self.teacher_url}'")
        if self.teacher_key_env is not None and self.teacher_url is None:
            raise ValueError("teacher_key_env does nothing without teacher_url")
        if self.teacher_url and self.teacher_engines:
            raise ValueError("teacher_url and teacher_engines both name a teacher: set one of them")

    @property
    def is_served(self) -> bool:
        """Whether the teacher is asked by HTTP; otherwise the trainers hold it."""
        return bool(self.teacher_url or self.teacher_engines)

    @property
    def needs(self) -> Sequence[Column]:
        source = Source.rollout if self.is_served else Source.teacher
        return *super().needs, Column(TEACHER_LOGPROBS, source)

    @property
    def makes(self) -> Sequence[str]:
        """Of a teacher that is served, its column."""
        return (TEACHER_LOGPROBS,) if self.is_served else ()

    def make_columns(self, samples: Sequence[TrainSample]) -> list[TrainSample]:
        """With what the server, or the engines, say of every token.

        Raises:
            SlimeError: they do not answer, or not about these tokens.
        """
        from slime_plugin_distillation.served import Server, logprobs_by, server_of

        if self.teacher_engines:
            from slime.reward.engines import asking

            found = asking(
                self.teacher_engines, lambda group: logprobs_by([server_of(each) for each in group], samples)
            )
        else:
            assert self.teacher_url, "otherwise it makes none"
            found = logprobs_by([Server(self.teacher_url, self.teacher_key_env)], samples)
        return [sample.with_columns(**{TEACHER_LOGPROBS: x}) for sample, x in zip(samples, found, strict=True)]

    def metrics(self, columns: Collection[str]) -> Metrics:
        found = super().metrics(columns)
        return dataclasses.replace(found, token_sums=(*found.token_sums, "teacher_kl"))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        columns = inputs.columns
        gap = scores[0].detach() - columns[TEACHER_LOGPROBS]
        judged = {**columns, ADVANTAGES: columns[ADVANTAGES] - self.teacher_coef * gap}
        terms = super().loss(scores, dataclasses.replace(inputs, columns=judged))
        return dataclasses.replace(terms, token_sums={**terms.token_sums, "teacher_kl": inputs.count(gap)})
