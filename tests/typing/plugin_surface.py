"""Read by mypy only: a plugin module checks against the hook Protocol and the contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.contracts import RewardModel
from slime.hookspecs import hookimpl
from slime.types import Sample, Verdict


class Length:
    def score(self, sample: Sample) -> Verdict:
        return Verdict.of(float(len(sample.response)))


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    return {"length": Length}
