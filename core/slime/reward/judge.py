"""What runs in a reward's workers: the reward, asked for a verdict on one sample after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from guarded_workers.worker import Line
from slime import plugins
from slime.reward.verdicts import checked, fields
from slime.types import Sample


class Judge:
    """A `guarded_workers.worker.Servant`.

    Args:
        name, options: of the reward.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._reward = plugins.load().rewards.get(name).factory(**options)

    def answer(self, message: Sample, _: Line) -> dict[str, Any]:
        return fields(checked(self._reward.score(message), "score"))


def lean(sample: Sample) -> Sample:
    """What a reward may read of `sample`: all but log-probs, loss mask, weight spans and what engines recorded, the
    largest part of it."""
    nothing: dict[str, Any] = {"logprobs": [], "loss_mask": [], "spans": [], "recorded": {}}
    return replace(sample, segments=[replace(segment, **nothing) for segment in sample.segments])
