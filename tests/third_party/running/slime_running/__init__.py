"""An estimator with a memory: `slime ... algo.advantage=running algo.advantage_options.decay=0.5`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from slime.estimator import Attempt, Estimator
from slime.hookspecs import hookimpl


@dataclass
class Running:
    """A reward minus the running mean of its prompt set, as of before the step: one sample of a prompt is enough."""

    decay: float = 0.9
    min_samples = 1
    _means: dict[str, float] = field(default_factory=dict, init=False)

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[float]]:
        rewards = defaultdict[str, list[float]](list)
        for attempt in (attempt for group in groups for attempt in group):
            rewards[attempt.sample.prompt.set].append(attempt.reward)
        before = {name: self._means.get(name, fmean(values)) for name, values in rewards.items()}
        for name, values in rewards.items():
            self._means[name] = self.decay * before[name] + (1 - self.decay) * fmean(values)
        return [[attempt.reward - before[attempt.sample.prompt.set] for attempt in group] for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return {"means": {**self._means}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._means = {**state["means"]}


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {"running": Running}
