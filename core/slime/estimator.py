"""Estimators, which turn rewards into advantages: the contract, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from slime.objective import Objective
from slime.types import Sample

if TYPE_CHECKING:
    import numpy as np

PENALTIES = "penalties"
"""Column of what is taken from the reward of each token that a critic learns of (`PenalisesRewards`)."""
VALUES, RETURNS = "values", "returns"
"""Columns of a critic: what it expects of a token's return, and what that turned out to be."""


@dataclass(frozen=True)
class Attempt:
    """A sample as an estimator sees it. Where no critic learns, the objective may have taken something from its reward
    (`slime.algo.stages.PenalisesRewards`)."""

    reward: float
    num_loss_tokens: int  # of all its segments; at least 1
    sample: Sample  # to be read, never changed
    segments: Sequence[int] = ()  # loss tokens of each segment that has any, in their order; empty: there is one


@runtime_checkable
class Estimator(Protocol):
    """Turns the rewards of a step into advantages, in the driver, before the first optimizer step. `slime plan` creates
    it, so torch is imported in `advantages` if at all.

    A run has one. Checkpoints keep its state if it has the methods of `slime.contracts.Stateful`."""

    @property
    def min_samples(self) -> int:
        """Samples of a prompt that it needs; groups with fewer that have a reward and a loss token are left out."""

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float | np.ndarray]]:
        """For each attempt in each group a number for all of its loss tokens, or [num_loss_tokens] numbers, in the
        order of its segments: finite, because they multiply the loss. Called once a step."""


@runtime_checkable
class CriticEstimator(Estimator, Protocol):
    """An estimator that compares with the expectation of a critic (`algo.critic`), a second model of the trainers.

    What its `advantages` gives are the rewards of tokens. Once the critic has scored the tokens, on the ranks,
    `PENALTIES` are taken from them, and advantages take their place. Shape letter: n loss tokens of one sequence."""

    @property
    def critic(self) -> Objective:
        """What the critic learns: a loss of its values, with the columns `VALUES` and `RETURNS`."""

    @property
    def whitens(self) -> bool:
        """Whether advantages get mean 0 and deviation 1 over the loss tokens of the step. Returns are made before."""

    def from_values(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        """[n] advantages, of rewards and values [n] float64."""

    def targets(self, rewards: np.ndarray, values: np.ndarray, advantages: np.ndarray) -> np.ndarray:
        """[n] returns, which the critic learns."""
