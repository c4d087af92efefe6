"""What an estimator with a critic of values is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slime.estimator import Attempt
from slime.objective import Objective

if TYPE_CHECKING:
    import numpy as np

VALUES, RETURNS = "values", "returns"
"""Columns of a critic: what it expects of a token's return, and what that turned out to be."""


class ValueEstimator(ABC):
    """A `slime.estimator.CriticEstimator` whose critic says of each token what return it expects."""

    @property
    @abstractmethod
    def min_samples(self) -> int:
        """See `slime.estimator.Estimator`."""

    @abstractmethod
    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float | np.ndarray]]:
        """The rewards of tokens, as `slime.estimator.Estimator` gives advantages."""

    @property
    @abstractmethod
    def critic(self) -> Objective:
        """What the critic learns: a loss of its values, with the columns `VALUES` and `RETURNS`."""

    @property
    @abstractmethod
    def whitens(self) -> bool:
        """Whether advantages get mean 0 and deviation 1 over the loss tokens of the step, of which each counts once.
        Returns are made before."""

    @abstractmethod
    def from_values(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        """[n] advantages of the n loss tokens of one sequence.

        Args:
            rewards, values: [n] float64.
        """

    def targets(self, rewards: np.ndarray, values: np.ndarray, advantages: np.ndarray) -> np.ndarray:
        """[n] returns, which the critic learns, of the same tokens: unless an estimator has others, the advantage of
        each plus its value."""
        returns: np.ndarray = advantages + values
        return returns

    def make_critic(self, trainer: Any) -> Any:
        """See `slime.estimator.CriticEstimator`."""
        from slime_algorithms.ppo.critic import ValueCritic

        return ValueCritic(self, trainer)
