"""The judge in a reward's worker, which asks the reward for verdicts on one sample, or one group, after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from guarded_workers.wire import FaultError
from guarded_workers.worker import Line
from slime import plugins
from slime.contracts import GroupReward
from slime.reward.deadline import begin
from slime.reward.engines import Addresses, tell
from slime.reward.verdicts import checked, fields
from slime.types import Sample


class Judge:
    """A `guarded_workers.worker.Servant` of a reward."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._reward = plugins.load().rewards.get(name).factory(**options)
        self.told = isinstance(self._reward, GroupReward)  # what the driver is to ask for

    def answer(self, message: tuple[Sample | list[Sample], Addresses, float], _: Line) -> Any:
        asked, addresses, timeout_s = message
        tell(addresses)
        begin(timeout_s)
        if isinstance(asked, Sample):
            return fields(checked(self._reward.score(asked), "score"))
        said = self._reward.score_group(asked)
        if not isinstance(said, list | tuple) or len(said) != len(asked):
            raise FaultError(f"score_group returned {said!r:.80}, not a list of {len(asked)} Verdicts")
        return [fields(checked(each, "score_group")) for each in said]


def lean(sample: Sample) -> Sample:
    """`sample` as a reward reads it: without log-probs, loss mask, weight spans and recordings, the largest part."""
    nothing: dict[str, Any] = {"logprobs": [], "loss_mask": [], "spans": [], "recorded": {}}
    return replace(sample, segments=[replace(segment, **nothing) for segment in sample.segments])
