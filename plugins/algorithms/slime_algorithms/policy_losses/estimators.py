"""Estimators of advantages beside GRPO's. R is an attempt's reward, n the number of attempts in its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.algo.advantages import centred
from slime.estimator import Attempt

if TYPE_CHECKING:
    import numpy as np

EPSILON = 1e-8
"""Added to a standard deviation, so that a step of equal rewards has advantages of 0."""

Groups = Sequence[Sequence[Attempt]]


@dataclass(frozen=True)
class Rloo:
    """REINFORCE leave-one-out (arXiv 2402.14740, section 3.3): R minus the mean of the group's others.

    That is n / (n - 1) times R minus the mean of all.
    """

    min_samples = 2

    def advantages(self, groups: Groups) -> Sequence[Sequence[float]]:
        return [[len(group) / (len(group) - 1) * value for value in _centred(group)] for group in groups]


@dataclass(frozen=True)
class ReinforcePp:
    """REINFORCE++ (arXiv 2501.03262): returns, whitened over all loss tokens of the step.

    The return of an attempt's token is gamma^k R, with k the loss tokens that follow it: what a program wrote is no
    step of the policy.

    Args:
        gamma: discount of a loss token.
    """

    gamma: float = 1.0

    min_samples = 1

    def advantages(self, groups: Groups) -> Sequence[Sequence[np.ndarray]]:
        return _whitened([[self._returns(attempt) for attempt in group] for group in groups])

    def _returns(self, attempt: Attempt) -> np.ndarray:
        import numpy as np

        following = np.arange(attempt.num_loss_tokens - 1, -1, -1, dtype=np.float64)
        returns: np.ndarray = attempt.reward * np.power(self.gamma, following)
        return returns


@dataclass(frozen=True)
class ReinforcePpBaseline:
    """REINFORCE++ with a baseline (arXiv 2501.03262): R minus the mean of its group, whitened over all loss tokens of
    the step."""

    min_samples = 2

    def advantages(self, groups: Groups) -> Sequence[Sequence[np.ndarray]]:
        import numpy as np

        centred = [
            [np.full(attempt.num_loss_tokens, value) for attempt, value in zip(group, _centred(group), strict=True)]
            for group in groups
        ]
        return _whitened(centred)


def _centred(group: Sequence[Attempt]) -> list[float]:
    return centred([attempt.reward for attempt in group])


def _whitened(values: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """Mean 0 and deviation 1 over the loss tokens of the step, of which each counts once."""
    import numpy as np

    every = np.concatenate([of_attempt for of_group in values for of_attempt in of_group])
    mean = every.mean()
    mean += (every - mean).mean()  # what its rounding leaves, as in `centred`
    scale = np.sqrt(np.square(every - mean).mean()) + EPSILON
    return [[(of_attempt - mean) / scale for of_attempt in of_group] for of_group in values]
