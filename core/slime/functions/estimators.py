"""Estimator `function`: a function from the rewards of a group to its advantages, or a class with the members of
`slime.estimator.Estimator`."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from slime.by_path.called import Form, Own, PathOptions
from slime.estimator import Attempt, Estimator


@dataclass
class EstimatorOptions(PathOptions):
    min_samples: int = 2
    """Samples of a prompt that a function needs; groups with fewer that have a reward are left out."""

    everywhere: ClassVar[bool] = True
    form: ClassVar[Form] = Form(("rewards", "samples", "group"), ("rewards",), ("min_samples", "advantages"))


def own_estimator(**options: Any) -> Estimator:
    chosen = EstimatorOptions(**options)
    own = Own(chosen, "algo.advantage_path")
    made: Estimator = own.made or FunctionEstimator(own, chosen.min_samples)
    return made


class FunctionEstimator:
    """The function is asked of one group after the other."""

    def __init__(self, own: Own, min_samples: int) -> None:
        self._own, self.min_samples = own, min_samples

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> Sequence[Sequence[Any]]:
        return [self._of(group) for group in groups]

    def _of(self, group: Sequence[Attempt]) -> list[Any]:
        rewards, samples = [attempt.reward for attempt in group], [attempt.sample for attempt in group]
        answer = self._own.call({"rewards": rewards, "samples": samples, "group": [*group]})
        found = [*answer] if hasattr(answer, "__len__") and not isinstance(answer, str | dict) else []
        right = all(isinstance(each, numbers.Real) or hasattr(each, "shape") for each in found)
        if len(found) != len(group) or not right:
            raise self._own.returned(answer, f"{len(group)} advantages, one for each reward")
        return found
