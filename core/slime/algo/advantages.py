"""Advantages from the rewards of one group."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

EPSILON = 1e-6
"""Added to the standard deviation, so that a group whose rewards barely differ does not explode."""


def group_advantages(rewards: Sequence[float | None], normalize_std: bool) -> list[float | None]:
    """Rewards relative to their group: r - mean(r), divided by std(r) where `normalize_std`.

    With the division this is GRPO (arXiv 2402.03300, section 4.1.2), with the unbiased estimate of the
    standard deviation; without it Dr. GRPO (arXiv 2503.20783).

    Args:
        rewards: one entry a sample; None where the reward gave no value.

    Returns:
        One entry a sample; None stays None and takes no part in mean or deviation. A lone value has advantage 0.
    """
    values = [reward for reward in rewards if reward is not None]
    if not values:
        return [None] * len(rewards)
    mean = statistics.fmean(values)
    scale = statistics.stdev(values) + EPSILON if normalize_std and len(values) > 1 else 1.0
    return [None if reward is None else (reward - mean) / scale for reward in rewards]
