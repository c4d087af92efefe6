"""Advantages relative to a group: GRPO's estimator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slime.estimator import Attempt

EPSILON = 1e-6
"""Added to the standard deviation, so that a group whose rewards barely differ does not explode."""


@dataclass(frozen=True, kw_only=True)
class GroupMean:
    """A reward relative to those of its group (`group_advantages`)."""

    normalize_std: bool
    min_samples = 2

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float]]:
        return [group_advantages([attempt.reward for attempt in group], self.normalize_std) for group in groups]


def group_advantages(rewards: Sequence[float], normalize_std: bool) -> list[float]:
    """Rewards relative to their group: r - mean(r), divided by std(r) where `normalize_std`.

    With the division this is GRPO (arXiv 2402.03300, section 4.1.2), with the unbiased estimate of the
    standard deviation; without it Dr. GRPO (arXiv 2503.20783). A lone reward has advantage 0.
    """
    import statistics  # which the verbs do without

    if not rewards:
        return []
    scale = statistics.stdev(rewards) + EPSILON if normalize_std and len(rewards) > 1 else 1.0
    return [value / scale for value in centred(rewards)]


def centred(rewards: Sequence[float]) -> list[float]:
    """Rewards minus their mean. The mean is rounded where they are large, so the rest is taken off, too, or equal ones
    would teach something."""
    mean = math.fsum(rewards) / len(rewards)
    values = [reward - mean for reward in rewards]
    rest = math.fsum(values) / len(values)
    return [value - rest for value in values]
