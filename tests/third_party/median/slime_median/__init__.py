"""An estimator of advantages: `slime ... algo.advantage=median algo.advantage_options.bound=2`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from slime.estimator import Attempt, Estimator
from slime.hookspecs import hookimpl


@dataclass(frozen=True)
class Median:
    """A reward minus the median of its group, within a bound: one wild reward moves the others little."""

    bound: float = 1.0
    min_samples = 2

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float]]:
        return [self._of_group([attempt.reward for attempt in group]) for group in groups]

    def _of_group(self, rewards: Sequence[float]) -> list[float]:
        centre = median(rewards)
        return [min(max(reward - centre, -self.bound), self.bound) for reward in rewards]


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {"median": Median}
