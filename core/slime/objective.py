"""Objectives: what a model learns from its samples. The contract, without torch."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


class TrainsOn(enum.Enum):
    """Samples of an objective."""

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
    """Results of a critic (`slime_megatron.train.critic.Critic.learn`), before its first optimizer step."""


@dataclass(frozen=True)
class Column:
    """Numbers for every token that an objective reads beside the model's scores.

    Attributes:
        name: in `LossInputs.columns`.
        optional: the objective does without it where samples lack it, or where it would cost a pass of its own. A
            column of the policy costs none in the first optimizer step: the model computes it anyway.
        width: numbers for each token, [t, width]; None: one, [t]. A reference or teacher then gives the log-probs of
            its most probable tokens in nats, or, with `ids`, their ids, and has no column [t].
        ids: the numbers are ids of tokens, int64, those of a place all different. `LossInputs.logprobs_of` has the
            model's own log-probs of them.
    """

    name: str
    source: Source = Source.rollout
    optional: bool = False
    width: int | None = None
    ids: bool = False


@dataclass(frozen=True)
class Metrics:
    """Names of the numbers that a loss returns, as in `LossTerms`.

    Attributes:
        measured_on: by token sum or maximum, the token sum that counts its tokens, where these are not all loss tokens.
            Such a sum becomes a mean over them, and both are left out where there are none. Counts are no metrics.
    """

    means: Sequence[str]
    token_sums: Sequence[str] = ()
    maxima: Sequence[str] = ()
    measured_on: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LossInputs:
    """Inputs of a loss for a micro-batch. Shape letter: t tokens of this rank, each of which the model predicts.

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
        step_sums: of `slime.algo.stages.HasStepSums`, scalars by name; of other objectives empty.
    """

    loss_mask: Tensor
    loss_weights: Tensor
    columns: Mapping[str, Tensor]
    sum_by_sequence: Callable[[Tensor], Tensor]
    sum_by_attempt: Callable[[Tensor], Tensor] | None = None
    logprobs_of: Mapping[str, Tensor] = field(default_factory=dict)
    step_sums: Mapping[str, Tensor] = field(default_factory=dict)

    def weighted(self, values: Tensor) -> Tensor:
        """This micro-batch's part of the mean of [t] token losses."""
        return (values * self.loss_weights).sum()

    def count(self, values: Tensor) -> Tensor:
        """The sum of [t] numbers over the loss tokens."""
        return (values * self.loss_mask).sum()

    def mean_by_sequence(self, values: Tensor) -> Tensor:
        """[t] the mean of [t] numbers over the loss tokens of each token's sequence; 0 where that has none."""
        counts = self.sum_by_sequence(self.loss_mask)
        return self.sum_by_sequence(values * self.loss_mask) / counts.clamp(min=1)


@dataclass(frozen=True)
class LossTerms:
    """Scalars by name that a micro-batch adds to the loss and to the metrics of an optimizer step."""

    loss: Tensor  # with gradient
    means: Mapping[str, Tensor]  # sums of weighted values (`LossInputs.weighted`), which add up to means
    token_sums: Mapping[str, Tensor] = field(default_factory=dict)  # `LossInputs.count`; their mean is over the step
    maxima: Mapping[str, Tensor] = field(default_factory=dict)  # the metric is the largest of the step, at least 0

    def detach(self) -> LossTerms:
        """These terms without the graph that led to them."""
        groups = (self.means, self.token_sums, self.maxima)
        return LossTerms(self.loss.detach(), *({name: x.detach() for name, x in group.items()} for group in groups))


@runtime_checkable
class Objective(Protocol):
    """Learns from batches; knows nothing of packing, ranks and optimizer steps. `slime plan` creates it and asks all
    but `loss`, so nothing else may import torch.

    The gradient of the entropies costs time at the output head: with an attribute `entropy_gradient = False` the model
    leaves it out."""

    @property
    def trains_on(self) -> TrainsOn: ...

    @property
    def needs(self) -> Sequence[Column]:
        """The columns that `loss` reads. Sources beside the rollout cost memory or passes: `slime plan` shows them."""

    def metrics(self, columns: Collection[str]) -> Metrics:
        """Exactly the numbers that `loss` returns where these columns are there."""

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        """The terms of one micro-batch, in sums: nothing is divided here.

        Args:
            scores: [2, t] log-probs of the tokens and entropies of their distributions, in nats, with gradient, at the
                temperature that samples are drawn with. Of a critic [1, t]: values.
        """
