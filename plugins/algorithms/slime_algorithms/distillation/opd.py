"""On-policy distillation: a teacher judges each token that the model itself sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.algo.grpo import Grpo
from slime.estimator import Attempt
from slime.objective import Column, LossInputs, LossTerms, Metrics, Source
from slime.types import ADVANTAGES, TrainSample

if TYPE_CHECKING:
    from torch import Tensor

TEACHER_LOGPROBS = "teacher_logprobs"
TOP_IDS, TOP_LOGPROBS = "teacher_top_ids", "teacher_top_logprobs"


@dataclass(frozen=True, kw_only=True)
class Opd(Grpo):
    """GRPO's loss with the advantage A of a token replaced by

        A - teacher_coef sg[log pi - log pi_teacher]

    Over samples of pi, log pi - log pi_teacher is the reverse divergence KL(pi, pi_teacher) at a token's place (Agarwal
    et al. 2023, arXiv 2306.13649; Thinking Machines Lab 2025, "On-policy distillation"). Its gradient, with the prefix
    held constant, is what this loss has in expectation: exactly, also after several optimizer steps, as long as no
    bound acts, because pi is the current one and the ratio corrects for where samples come from.

    `teacher_kl` is its mean over the loss tokens, in nats.

    With `teacher_top_k` the advantages stay those of rewards, and to the loss of each token is added teacher_coef times
    the divergence over the teacher's k most probable tokens and the rest (`.divergence.top_divergence`), at the token's
    place and with its gradient, whatever token was sampled there. `teacher_kl` is then its mean, and `teacher_rest` the
    mean of the model's probability outside the k tokens.

    Args:
        teacher_coef: weight of the teacher beside the advantages of rewards.
        teacher_url: address of an SGLang server with the teacher; None: the trainers hold it (`algo.teacher`).
        teacher_engines: or the engine group of the run that has the teacher (`rollout.engines.NAME.model`).
        teacher_key_env: environment variable that holds the key which the server asks for (its `--api-key`), if any.
        teacher_top_k: tokens of the teacher's that are compared at each place; None: the sampled one alone.

    Raises:
        ValueError: teacher_coef is not above 0, teacher_url is no address, teacher_key_env is set without it, both say
            where the teacher is, or teacher_top_k is below 1.
    """

    teacher_coef: float = 1.0
    teacher_url: str | None = None
    teacher_engines: str | None = None
    teacher_key_env: str | None = None
    teacher_top_k: int | None = None

    def __post_init__(self) -> None:
        if not self.teacher_coef > 0:
            raise ValueError(f"teacher_coef must be above 0, got {self.teacher_coef:g}")
        if self.teacher_url is not None and not self.teacher_url.startswith(("http://", "https://")):
            raise ValueError(f"teacher_url must begin with http:// or https://, got '{self.teacher_url}'")
        if self.teacher_key_env is not None and self.teacher_url is None:
            raise ValueError("teacher_key_env does nothing without teacher_url")
        if self.teacher_url and self.teacher_engines:
            raise ValueError("teacher_url and teacher_engines both name a teacher: set one of them")
        if self.teacher_top_k is not None and self.teacher_top_k < 1:
            raise ValueError(f"teacher_top_k must be 1 or more, got {self.teacher_top_k}")

    @property
    def is_served(self) -> bool:
        """Whether the teacher is asked by HTTP; otherwise the trainers hold it."""
        return bool(self.teacher_url or self.teacher_engines)

    @property
    def entropy_gradient(self) -> bool:
        """Nothing beside the bonus reads them."""
        return self.entropy_coef != 0

    @property
    def needs(self) -> Sequence[Column]:
        source = Source.rollout if self.is_served else Source.teacher
        if (k := self.teacher_top_k) is None:
            return *super().needs, Column(TEACHER_LOGPROBS, source)
        return *super().needs, Column(TOP_IDS, source, width=k, ids=True), Column(TOP_LOGPROBS, source, width=k)

    @property
    def makes(self) -> Sequence[str]:
        """The columns of a teacher that is served."""
        if not self.is_served:
            return ()
        return (TEACHER_LOGPROBS,) if self.teacher_top_k is None else (TOP_IDS, TOP_LOGPROBS)

    def make_columns(self, samples: Sequence[TrainSample]) -> list[TrainSample]:
        """With what the server, or the engines, say of every token. Raises SlimeError: they do not answer, or not about
        these tokens."""
        from slime_algorithms.distillation.served import Server, asked_of, server_of

        if self.teacher_engines:
            from slime.reward.engines import asking

            found = asking(
                self.teacher_engines,
                lambda group: asked_of([server_of(each) for each in group], samples, self.teacher_top_k),
            )
        else:
            assert self.teacher_url, "otherwise it makes none"
            found = asked_of([Server(self.teacher_url, self.teacher_key_env)], samples, self.teacher_top_k)
        made = (zip(self.makes, columns, strict=True) for columns in found)
        return [sample.with_columns(**dict(columns)) for sample, columns in zip(samples, made, strict=True)]

    def metrics(self, columns: Collection[str]) -> Metrics:
        found = super().metrics(columns)
        added = ("teacher_kl",) if self.teacher_top_k is None else ("teacher_kl", "teacher_rest")
        return dataclasses.replace(found, token_sums=(*found.token_sums, *added))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        return self._of_sampled(scores, inputs) if self.teacher_top_k is None else self._of_top(scores, inputs)

    def _of_top(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        from slime_algorithms.distillation.divergence import top_divergence

        terms = super().loss(scores, inputs)
        kl, rest = top_divergence(inputs.logprobs_of[TOP_IDS], inputs.columns[TOP_LOGPROBS])
        loss = terms.loss + self.teacher_coef * inputs.weighted(kl)
        seen = {"teacher_kl": inputs.count(kl.detach()), "teacher_rest": inputs.count(rest)}
        means, sums = {**terms.means, "loss": loss}, {**terms.token_sums, **seen}
        return dataclasses.replace(terms, loss=loss, means=means, token_sums=sums)

    def _of_sampled(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        columns = inputs.columns
        gap = scores[0].detach() - columns[TEACHER_LOGPROBS]
        judged = {**columns, ADVANTAGES: columns[ADVANTAGES] - self.teacher_coef * gap}
        terms = super().loss(scores, dataclasses.replace(inputs, columns=judged))
        return dataclasses.replace(terms, token_sums={**terms.token_sums, "teacher_kl": inputs.count(gap)})


@dataclass(frozen=True)
class NoReward:
    """Every advantage is 0, so rewards teach nothing: they are only measured."""

    min_samples = 1

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float]]:
        return [[0.0 for _ in group] for group in groups]
