"""Buffer `staleness`: drops, refreshes or keeps groups whose tokens are too old when a step is to continue them."""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass

from slime.sampling.buffer import FifoBuffer
from slime.types import Group, Sample


class WhenOld(enum.StrEnum):
    """What becomes of a group that is too old."""

    drop = "drop"
    """It is not trained on."""
    refresh = "refresh"
    """Its samples that are too old are generated again."""
    keep = "keep"
    """It goes on."""


@dataclass(eq=False)
class Staleness(FifoBuffer):
    """Gives the groups with the oldest tokens first.

    Attributes:
        dropped: groups that were dropped while it held them, by reason, since the loop has read it.
    """

    max_lag: int = 1
    """Weight versions that the oldest token of a group may be behind the version that goes on with it."""
    when_old: WhenOld = WhenOld.refresh
    """Of a group that is behind further: drop it, refresh its old samples, or keep it as it is."""
    max_groups: int | None = None
    """Groups held at most; null holds all."""

    def __post_init__(self) -> None:
        if self.max_lag < 0:
            raise ValueError(f"max_lag is {self.max_lag}, below 0")
        super().__init__(self.max_groups)
        self.when_old = WhenOld(self.when_old)  # a run has its name
        self.dropped = Counter[str]()

    def take(self, count: int, version: int) -> list[Group]:
        """At most `count` groups, none of them older than it may be."""
        least, held = version - self.max_lag, list(self._groups)
        if self.when_old is WhenOld.drop:
            held = [group for group in held if _oldest(group, version) >= least]
            if old := len(self._groups) - len(held):
                self.dropped["too_old"] += old
        self._groups = deque(sorted(held, key=lambda group: _oldest(group, version)))
        taken = super().take(count, version)
        if self.when_old is WhenOld.refresh:
            from slime.sampling.attempts import begin_again  # here, because every verb reads the options

            for sample in (sample for group in taken for sample in group.samples):
                if _first(sample, version) < least:
                    begin_again(sample)
        return taken


def _first(sample: Sample, version: int) -> int:
    """The version of its oldest token; `version` where it has none."""
    return min((span.version for span in sample.spans if span.version is not None), default=version)


def _oldest(group: Group, version: int) -> int:
    return min((_first(sample, version) for sample in group.samples), default=version)
