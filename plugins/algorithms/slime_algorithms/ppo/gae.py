"""Generalised advantage estimation over the loss tokens of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.estimator import Attempt
from slime.objective import Objective
from slime_algorithms.ppo.value_loss import ValueLoss

if TYPE_CHECKING:
    import numpy as np

    from slime.config.schema import TrainConfig

CHUNK = 128
"""Tokens whose sums are taken by one product of matrices."""


@dataclass(frozen=True)
class Gae:
    """A `slime.estimator.CriticEstimator`: advantages from a critic's values V (arXiv 1506.02438, equations 11, 12 and
    16), over loss tokens alone.

        delta_t = r_t + gamma V_t+1 - V_t        A_t = delta_t + gamma lambda A_t+1

    What the critic learns of a token is V_t + A_t with a lambda of its own (VC-PPO, arXiv 2503.01491, section 3.3).
    t + 1 is the next loss token of the sequence, and behind the last one V and A are 0. What a program wrote between
    them is no step of the policy. The reward stands at the last loss token. An attempt of several segments has it at
    the last one of each, discounted by the loss tokens of the segments that follow.

    Args:
        gamma: discount of a loss token.
        gae_lambda: how far a token of the policy answers for what later ones bring: 0 the next value alone, 1 the whole
            return. Below 1 a reward at the end fades: 100 tokens before it 0.95 leaves 0.6 percent.
        critic_lambda: the same of what the critic learns. Below 1 it learns from its own later values, which begin
            at 0.
        value_clip: of `ValueLoss`.
        whiten: advantages get mean 0 and deviation 1 over the loss tokens of the step.

    Raises:
        ValueError: gamma or a lambda is not from 0 to 1, or value_clip is not above 0.
    """

    gamma: float = 1.0
    gae_lambda: float = 1.0
    critic_lambda: float = 1.0
    value_clip: float | None = 0.2
    whiten: bool = True

    def __post_init__(self) -> None:
        for name in ("gamma", "gae_lambda", "critic_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name):g}")
        if self.value_clip is not None and self.value_clip <= 0:
            raise ValueError(f"value_clip must be above 0, or null, got {self.value_clip:g}")

    def idle_options(self, train: TrainConfig) -> Mapping[str, str]:
        """A value is clipped around what it was before the first optimizer step, when it has not moved."""
        from slime.algo.stages import ONE_STEP

        return {"value_clip": ONE_STEP} if train.optimizer_steps == 1 else {}

    min_samples = 1

    @property
    def critic(self) -> Objective:
        return ValueLoss(self.value_clip)

    @property
    def whitens(self) -> bool:
        return self.whiten

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[np.ndarray]]:
        """The rewards of tokens."""
        return [[self._rewards(attempt) for attempt in group] for group in groups]

    def _rewards(self, attempt: Attempt) -> np.ndarray:
        import numpy as np

        lasts = np.cumsum(attempt.segments or [attempt.num_loss_tokens]) - 1
        rewards: np.ndarray = np.zeros(attempt.num_loss_tokens)
        rewards[lasts] = attempt.reward * np.power(self.gamma, attempt.num_loss_tokens - 1.0 - lasts)
        return rewards

    def from_values(self, rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
        return self._sums(rewards, values, self.gae_lambda)

    def targets(self, rewards: np.ndarray, values: np.ndarray, advantages: np.ndarray) -> np.ndarray:
        is_same = self.critic_lambda == self.gae_lambda
        returns: np.ndarray = values + (advantages if is_same else self._sums(rewards, values, self.critic_lambda))
        return returns

    def _sums(self, rewards: np.ndarray, values: np.ndarray, lam: float) -> np.ndarray:
        import numpy as np

        deltas = rewards - values
        deltas[:-1] += self.gamma * values[1:]
        return discounted_sums(np.asarray(deltas), self.gamma * lam)


def discounted_sums(terms: np.ndarray, factor: float) -> np.ndarray:
    """[n] x_t + factor x_t+1 + factor^2 x_t+2 + ..., in float64.

    The sums inside chunks are one product with a triangle of powers; a chunk then adds the first sum of the next one.
    """
    import numpy as np

    count, steps = len(terms), np.arange(CHUNK)
    padded = np.zeros(-(-count // CHUNK) * CHUNK)
    padded[:count] = terms
    ahead = steps[None, :] - steps[:, None]
    triangle = np.where(ahead >= 0, np.power(factor, np.maximum(ahead, 0)), 0.0)
    sums = padded.reshape(-1, CHUNK) @ triangle.T
    to_next = np.power(factor, CHUNK - steps)
    for chunk in range(len(sums) - 2, -1, -1):
        sums[chunk] += to_next * sums[chunk + 1, 0]
    found: np.ndarray = sums.reshape(-1)[:count]
    return found
