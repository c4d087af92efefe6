"""What a model learns from its samples: the contract of an objective, which has a loss, without torch."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


class TrainsOn(enum.Enum):
    """What an objective learns from."""

    rollouts = "rollouts"
    """Samples of the model that is trained, with their rewards: a reinforcement-learning stage."""
    demonstrations = "demonstrations"
    """Rows of `sft.path`: a supervised stage."""
    pairs = "pairs"
    """Rows of `sft.path` with two answers, which stand in one micro-batch (`slime.types.PREFERENCE`)."""


class Source(enum.Enum):
    """Who makes a column."""

    rollout = "rollout"
    """It comes with the samples (`slime.types.TrainSample.columns`)."""
    data = "data"
    """The column of that name in the data set, of all rows: a number, which all loss tokens of a row's samples have, or
    of a demonstration a list, with a number for each token of the answer, its end token included."""
    policy = "policy"
    """Log-probs of the model that is trained, under its weights before the first optimizer step of the samples."""
    reference = "reference"
    """Log-probs of the reference model, which is the one that the stage starts from."""
    teacher = "teacher"
    """Log-probs of the teacher (`algo.teacher`)."""
    critic = "critic"
    """What comes of a critic (`slime_megatron.train.critic.Critic.learn`), before its first optimizer step."""


@dataclass(frozen=True)
class Column:
    """Numbers for every token that an objective reads beside the model's scores.

    Attributes:
        name: in `LossInputs.columns`.
        optional: the objective does without it where samples lack it, or where it would cost a pass of its own. One of
            the policy costs none in the first optimizer step: then it is what the model computes anyway.
        width: how many numbers for each token, [t, width]; None: one, [t]. Of a reference or a teacher, which then has
            no column [t], they are about the tokens that it holds most probable: the log-probs of these in nats, or,
            with `ids`, which ones they are.
        ids: the numbers are ids of tokens, int64, those of a place all different. The model's own log-probs of them are
            `LossInputs.logprobs_of`.
    """

    name: str
    source: Source = Source.rollout
    optional: bool = False
    width: int | None = None
    ids: bool = False


@dataclass(frozen=True)
class Metrics:
    """The names of the numbers that a loss returns, beside the loss.

    Attributes:
        means, token_sums, maxima: as in `LossTerms`.
        measured_on: of a token sum or a maximum, the token sum that counts the tokens it is about, where these are not
            all loss tokens. Such a sum becomes a mean over them, and both are left out where there are none. The counts
            themselves are no metrics.
    """

    means: Sequence[str]
    token_sums: Sequence[str] = ()
    maxima: Sequence[str] = ()
    measured_on: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LossInputs:
    """What a loss reads of a micro-batch. Shape letter: t tokens of this rank, each of which the model predicts.

    Attributes:
        loss_mask: [t] fp32, 1 where a token is trained on. Elsewhere the scores and all columns are 0, and no gradient
            flows back.
        loss_weights: [t] fp32. The sum of weighted token losses over the micro-batches and ranks of an optimizer step
            is the mean that `algo.loss_mean` asks for, so no loss divides by a number of tokens or samples.
        columns: by name, without gradient: [t] or [t, width] fp32, ids [t, width] int64.
        sum_by_sequence: from [t] numbers to the sum over the sequence of each token, [t], with gradient. All ranks that
            hold parts of the same sequences call it alike.
        sum_by_attempt: the same over both answers of a pair (`TrainsOn.pairs`); None elsewhere.
        logprobs_of: by name of a column of ids, [t, width] with gradient: the model's log-probs of these tokens, in
            nats, at the temperature that samples are drawn with.
        step_sums: scalars by name, over all micro-batches and ranks of the optimizer step, of an objective that asks
            for them (`slime.algo.stages.HasStepSums`); else empty.
    """

    loss_mask: Tensor
    loss_weights: Tensor
    columns: Mapping[str, Tensor]
    sum_by_sequence: Callable[[Tensor], Tensor]
    sum_by_attempt: Callable[[Tensor], Tensor] | None = None
    logprobs_of: Mapping[str, Tensor] = field(default_factory=dict)
    step_sums: Mapping[str, Tensor] = field(default_factory=dict)

    def weighted(self, values: Tensor) -> Tensor:
        """Of [t] token losses, this micro-batch's part of their mean."""
        return (values * self.loss_weights).sum()

    def count(self, values: Tensor) -> Tensor:
        """Of [t] numbers, their sum over the loss tokens."""
        return (values * self.loss_mask).sum()

    def mean_by_sequence(self, values: Tensor) -> Tensor:
        """Of [t] numbers, the mean over the loss tokens of each token's sequence, [t]; 0 where that has none."""
        counts = self.sum_by_sequence(self.loss_mask)
        return self.sum_by_sequence(values * self.loss_mask) / counts.clamp(min=1)


@dataclass(frozen=True)
class LossTerms:
    """What a micro-batch adds to the loss and to the metrics of an optimizer step: scalars by name.

    Attributes:
        loss: with gradient.
        means: sums of weighted values (`LossInputs.weighted`), which add up to means.
        token_sums: sums over loss tokens (`LossInputs.count`); the metric is their mean over the step's loss tokens.
        maxima: the metric is the largest of the step, and at least 0.
    """

    loss: Tensor
    means: Mapping[str, Tensor]
    token_sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)

    def detach(self) -> LossTerms:
        """The same numbers without the graph that led to them."""
        groups = (self.means, self.token_sums, self.maxima)
        return LossTerms(self.loss.detach(), *({name: x.detach() for name, x in group.items()} for group in groups))


@runtime_checkable
class SaysOfEntropy(Protocol):
    """An objective that says whether its loss depends on the entropies, whose gradient costs time at the output head.
    Of one that does not say it, they have their gradient."""

    @property
    def entropy_gradient(self) -> bool: ...


def takes_entropy_gradient(objective: Objective) -> bool:
    """Whether the model computes the gradient of the entropies."""
    return objective.entropy_gradient if isinstance(objective, SaysOfEntropy) else True


@runtime_checkable
class Objective(Protocol):
    """What a model learns from a batch; knows nothing of packing, ranks and optimizer steps.

    `slime plan` creates it and asks all but `loss`, so nothing else may import torch.
    """

    @property
    def trains_on(self) -> TrainsOn:
        """What its samples are."""

    @property
    def needs(self) -> Sequence[Column]:
        """The columns that `loss` reads. Sources beside the rollout cost memory or passes: `slime plan` shows them."""

    def metrics(self, columns: Collection[str]) -> Metrics:
        """The numbers that `loss` returns where these columns are there. They must be exactly those."""

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        """Of one micro-batch, in sums: nothing is divided here.

        Args:
            scores: [2, t] log-probs of the tokens and entropies of their distributions, in nats, with gradient
                (`SaysOfEntropy`); both at the temperature that samples are drawn with. Of a critic [1, t]: values.
        """
