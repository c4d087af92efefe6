"""Buffer `staleness`: says what becomes of groups whose tokens are too old when a step is about to continue them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from slime.sampling.attempts import begin_again
from slime.sampling.buffer import group_of, state_of
from slime.types import Decision, Group, Sample
from slime_filters.dynamic_sampling.staleness_options import Options, WhenOld


class Staleness:
    """Gives the groups with the oldest tokens first.

    Attributes:
        dropped: groups that were dropped while it held them, by reason, since the loop has read it.
    """

    def __init__(self, options: Options) -> None:
        if options.max_lag < 0:
            raise ValueError(f"max_lag is {options.max_lag}, below 0")
        self._options, self._when_old = options, WhenOld(options.when_old)  # a run has its name
        self._groups = list[Group]()
        self.dropped = Counter[str]()

    def put(self, group: Group, version: int) -> Decision:
        """Store `group`, or refuse it as `full`."""
        if self._options.max_groups is not None and len(self._groups) >= self._options.max_groups:
            return Decision(keep=False, reason="full")
        self._groups.append(group)
        return Decision(keep=True)

    def take(self, count: int, version: int) -> list[Group]:
        """At most `count` groups, none of them older than it may be."""
        least = version - self._options.max_lag
        if self._when_old is WhenOld.drop:
            young = [group for group in self._groups if _oldest(group, version) >= least]
            if old := len(self._groups) - len(young):
                self.dropped["too_old"] += old
            self._groups = young
        self._groups.sort(key=lambda group: _oldest(group, version))
        taken, self._groups = self._groups[: max(0, count)], self._groups[max(0, count) :]
        if self._when_old is WhenOld.refresh:
            for sample in (sample for group in taken for sample in group.samples):
                if _first(sample, version) < least:
                    begin_again(sample)
        return taken

    def __len__(self) -> int:
        return len(self._groups)

    def state_dict(self) -> dict[str, Any]:
        """Every group as plain values."""
        return {"groups": [state_of(group) for group in self._groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold exactly the groups of `state`."""
        self._groups = [group_of(values) for values in state["groups"]]


def _first(sample: Sample, version: int) -> int:
    """The version of its oldest token; `version` where it has none."""
    return min((span.version for span in sample.spans if span.version is not None), default=version)


def _oldest(group: Group, version: int) -> int:
    return min((_first(sample, version) for sample in group.samples), default=version)
