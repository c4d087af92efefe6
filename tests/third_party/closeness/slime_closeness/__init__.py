"""A reward for numbers that are nearly right: 1 for the label itself, less the farther the answer is from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl
from slime.types import Sample, Verdict


@dataclass
class Closeness:
    scale: float = 10.0
    """Distance at which half of the reward is left."""

    def score(self, sample: Sample) -> Verdict:
        answer = sample.response.rpartition("=")[2].strip()
        if not answer.lstrip("-").isdecimal():
            return Verdict.of(0.0, distance=0.0, number=0.0)
        distance = abs(int(answer) - int(sample.prompt.label))
        return Verdict.of(self.scale / (self.scale + distance), distance=distance, number=1.0)


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    return {"closeness": Closeness}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    return {"reward/closeness": Closeness}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_closeness.conf"]
