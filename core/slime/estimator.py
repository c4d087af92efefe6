"""Estimators, which turn rewards into advantages: the contract, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from slime.types import Sample

if TYPE_CHECKING:
    import numpy as np


PENALTIES = "penalties"
"""Column of what is taken from the reward of each token before a critic learns of it, if anything
(`slime.algo.stages.PenalisesRewards`)."""


@dataclass(frozen=True)
class Attempt:
    """A sample as an estimator sees it. Where no critic learns, the objective may have taken something from its reward
    (`slime.algo.stages.PenalisesRewards`)."""

    reward: float
    num_loss_tokens: int  # of all its segments; at least 1
    sample: Sample  # to be read, never changed
    segments: Sequence[
        int
    ] = ()  # loss tokens of each segment that has any, in their order; empty: there is one segment


@runtime_checkable
class Estimator(Protocol):
    """Turns the rewards of a step into advantages, in the driver, before the first optimizer step. `slime plan` creates
    it, so torch is imported in `advantages` if at all.

    A run has one. Checkpoints keep its state if it has the methods of `slime.contracts.Stateful`."""

    @property
    def min_samples(self) -> int:
        """Samples of a prompt that it needs to compare them. Groups with fewer that have a reward and a loss token are
        left out of the step."""

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float | np.ndarray]]:
        """For each attempt in each group a number for all of its loss tokens, or [num_loss_tokens] numbers, in the
        order of its segments: finite, because they multiply the loss. Called once a step."""


@runtime_checkable
class CriticEstimator(Estimator, Protocol):
    """An estimator that compares with the expectation of a critic (`algo.critic`), a second model of the trainers.

    Its `advantages` are the rewards of tokens. Once the critic has scored the tokens, on the ranks, it takes
    `PENALTIES` from them and puts advantages in their place. `slime_algorithms.ppo.estimator` leaves nothing but
    formulas to write.
    """

    def make_critic(self, trainer: Any) -> Any:
        """A `slime_megatron.train.critic.Critic`, from this rank's `slime_megatron.train.trainer.Trainer`."""
