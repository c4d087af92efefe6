"""How many steps ahead groups begin: no more than keep trainers from waiting, by what the last steps needed."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

NUM_STEPS = 32
"""Steps whose need is remembered. A rare long response counts for as long; a change of lengths shows after as long."""
NUM_INTERVALS = 8
"""Intervals between two steps of the trainers, of which the median is taken: one of them may evaluate or save."""
WAITING = 0.005
"""The share of their time that trainers may wait for lack of a further step ahead."""


@dataclass
class StepsAhead:
    """How many steps ahead groups begin: 1 to `most`.

    A step needed n steps ahead if its groups, begun n of the trainers' intervals before they were asked for, would have
    been complete just then. An interval is the time between the groups of a step and the question for the next ones.
    The least whole number is taken with which the last `NUM_STEPS` steps would have made the trainers wait for
    `WAITING` of an interval, in the mean. One step ahead always begins: what begins later in the same interval is of
    the same weights. Until a step is measured it is `most`; those that begin before the trainers have done anything are
    not measured, as they begin all at once, on engines that are cold.

    Every time is in seconds, of one clock.
    """

    most: int
    _needed: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_STEPS))
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_INTERVALS))
    _marks: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    """By step: when its groups were to begin; how long trainers had been busy by then; and how many steps ahead."""
    _last: int = 0
    _busy_s: float = 0.0
    _busy_since: float | None = None

    @property
    def number(self) -> int:
        """How many steps ahead groups are to begin now."""
        if not self._needed:
            return self.most
        allowed = WAITING * len(self._needed)
        enough = (n for n in range(1, self.most) if sum(max(0.0, need - n) for need in self._needed) <= allowed)
        return next(enough, self.most)

    def begin(self, version: int, now: float) -> int:
        """`number`, up to which groups begin now that weight `version` is published."""
        number, next_step = self.number, version + 1
        if self._busy_since is not None:
            busy_s = self._busy_s + now - self._busy_since
            for step in range(max(self._last, version) + 1, next_step + number + 1):
                self._marks[step] = now, busy_s, step - next_step
        self._last = max(self._last, next_step + number)
        return number

    def ask(self, now: float) -> None:
        """The trainers ask for the next step's groups."""
        if self._busy_since is not None:
            self._intervals.append(now - self._busy_since)
            self._busy_s, self._busy_since = self._busy_s + self._intervals[-1], None

    def take(self, step: int, ended: float, now: float) -> None:
        """The trainers have the groups of `step`, which were complete at the time `ended`."""
        if mark := self._marks.pop(step, None):
            begun, busy_s, ahead = mark
            late_s = (ended - begun) - (self._busy_s - busy_s)
            self._needed.append(ahead + late_s / statistics.median(self._intervals))
        self._busy_since = now
