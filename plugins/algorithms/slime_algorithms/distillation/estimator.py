"""Advantages for an objective that has its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slime.estimator import Attempt


@dataclass(frozen=True)
class NoReward:
    """Every advantage is 0, so rewards teach nothing: they are only measured."""

    min_samples = 1

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float]]:
        return [[0.0 for _ in group] for group in groups]
