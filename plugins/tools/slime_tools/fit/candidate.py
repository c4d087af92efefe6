"""A layout as keys over a config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slime.algo.stages import run_stages
from slime.config.changes import Changes, in_words
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.layout import Grid
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.publish.links import publish_links
from slime_tools.publish.seconds import publish_seconds

PUBLISH = "publish"


@dataclass(frozen=True)
class Candidate:
    """A layout that fits, unless it is the given one.

    Attributes:
        changes: of the given config; none if it is that one.
        seconds: of a rollout, by part.
        problems: of the given one, if it cannot be.
    """

    changes: Changes
    cfg: SlimeConfig
    grid: Grid
    seconds: Mapping[str, float]
    memory: MemoryPlan
    problems: Sequence[SlimeError] = ()

    @property
    def is_given(self) -> bool:
        return not self.changes

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def words(self) -> list[str]:
        """What to type behind the given words."""
        return in_words(self.changes)


def published(one: Candidate) -> Candidate:
    """With the seconds of a publish, where the layout can be and weights are published."""
    plan = one.memory
    if one.problems or not run_stages(plan.cfg).reinforces:
        return one
    seconds = publish_seconds(plan, publish_links(plan.topology, plan.weights, plan.model))
    return dataclasses.replace(one, seconds={**one.seconds, PUBLISH: seconds.total}) if seconds else one
