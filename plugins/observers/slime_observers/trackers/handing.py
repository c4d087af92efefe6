"""The chosen trackers of a run: each gets every row in order, and none can stop the run once it has begun."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from slime import plugins
from slime.contracts import SampleRow, SampleTables, SampleTracker, Tracker
from slime.errors import SlimeError
from slime.events import Ended, Event, Restored, SampleRows, Step
from slime.time_limit import FAILURES, DidNotReturnError, failure, within
from slime.types import SFT, RunStatus, TrackedRun

RETRY_S = 60.0
"""Seconds for which a tracker that failed is left alone: one that waits for a server costs the run that time each
step."""
PATIENCE_S, LONG_PATIENCE_S = 60.0, 300.0
"""Seconds that a tracker may take for a row or for samples, and to start or to finish; then it is ended."""

Row = tuple[str, int, float, Mapping[str, float]]

log = logging.getLogger(__name__)


def of_run(run: TrackedRun) -> Trackers:
    """The trackers that the run has chosen, connected. Raises SlimeError where one does not start."""
    chosen, installed = run.config.get("observe", {}).get("trackers", {}), plugins.load().trackers
    return Trackers({name: installed.create(name, **own) for name, own in chosen.items()}).start(run)


class Trackers:
    """All trackers, by name, between `start` and the event `Ended`; a subscriber of the run's events.

    A row that a tracker did not take waits and comes again, first in order, when the next one is due by `clock`.
    Samples do not wait: they would fill the memory of a long run.
    """

    def __init__(self, chosen: Mapping[str, Tracker], clock: Callable[[], float] = time.monotonic) -> None:
        self._trackers = {name: _Guarded(name, tracker, clock) for name, tracker in chosen.items()}
        self._samples: dict[str, Sequence[SampleRow]] = {}
        self._started: list[_Guarded] = []
        self._has_begun = False

    def start(self, run: TrackedRun) -> Trackers:
        """Connect all; raises SlimeError where one does not start."""
        for guarded in self._trackers.values():
            try:
                guarded.connect(run)
            except SlimeError:
                self.finish("failed")
                raise
            self._started.append(guarded)
        return self

    def __call__(self, event: Event) -> None:
        match event:
            case Restored(position) if position or self._has_begun:
                for guarded in self._started:
                    guarded.resume(*(position or (SFT, 0)))
            case SampleRows():
                self._samples |= event.tables
            case Step():
                samples, self._samples, self._has_begun = self._samples, {}, True
                for guarded in self._started:
                    guarded.add((event.stage, event.step, event.time, event.values), samples)
            case Ended():
                self.finish(event.status)

    def finish(self, status: RunStatus) -> None:
        """Hand over what still waits, and close."""
        while self._started:
            self._started.pop(0).finish(status)


def _words(error: BaseException) -> str:
    """What a tracker raised; of one in a user's file with its line."""
    return str(error).rstrip(".") if isinstance(error, SlimeError) else failure(error)


class _Guarded:
    """One tracker, with the rows that it has not taken."""

    def __init__(self, name: str, tracker: Tracker, clock: Callable[[], float]) -> None:
        self._name, self._tracker, self._clock = name, tracker, clock
        self._waiting: deque[Row] = deque()
        self._failed_at: float | None = None
        self._said_of_samples = False

    def connect(self, run: TrackedRun) -> None:
        try:
            with within(LONG_PATIENCE_S):
                self._tracker.start(run)
        except SlimeError:
            raise
        except FAILURES as error:
            where = f"observe.trackers.{self._name}"
            todo = f"Correct its settings, or run without: {where}=false."
            raise SlimeError(f"it does not start ({failure(error)})", where=where, todo=todo) from error

    def resume(self, stage: str, step: int) -> None:
        try:
            with within(PATIENCE_S):
                self._tracker.resume(stage, step)
        except FAILURES as error:
            log.warning("tracker %s failed to continue at %s step %d (%s)", self._name, stage, step, _words(error))

    def add(self, row: Row, samples: SampleTables) -> None:
        self._waiting.append(row)
        if self._failed_at is None or self._clock() - self._failed_at >= RETRY_S:
            self._hand_over()
        if samples and not self._waiting and isinstance(self._tracker, SampleTracker):
            self._show(self._tracker, row, samples)

    def _show(self, tracker: SampleTracker, row: Row, samples: SampleTables) -> None:
        stage, step, time, _ = row
        try:
            with within(PATIENCE_S):
                tracker.log_samples(stage, step, time, samples)
        except FAILURES as error:
            self._leave_alone(error)
            if not self._said_of_samples:
                what = "tracker %s lacks samples of %s step %d (%s): samples/ has them; later ones are tried in silence"
                log.warning(what, self._name, stage, step, _words(error))
            self._said_of_samples = True

    def _hand_over(self) -> None:
        try:
            while self._waiting:
                with within(PATIENCE_S):
                    self._tracker.log(*self._waiting[0])
                self._waiting.popleft()
        except FAILURES as error:
            if self._failed_at is None:
                stage, step, *_ = self._waiting[0]
                what = "the run goes on without it, its rows wait, and metrics.jsonl has them"
                log.warning("tracker %s failed at %s step %d (%s): %s", self._name, stage, step, _words(error), what)
            self._failed_at = self._clock()
            self._leave_alone(error)
        else:
            if self._failed_at is not None:
                log.warning("tracker %s works again, and has every row", self._name)
            self._failed_at = None

    def _leave_alone(self, error: BaseException) -> None:
        """Ask a tracker that did not return no more before the end: each time would cost the run as long."""
        if isinstance(error, DidNotReturnError):
            self._failed_at = math.inf

    def finish(self, status: RunStatus) -> None:
        if self._waiting:
            self._hand_over()
        if self._waiting:
            log.warning("tracker %s lacks %d rows; metrics.jsonl has them", self._name, len(self._waiting))
        try:
            with within(LONG_PATIENCE_S):
                self._tracker.finish(status)
        except FAILURES as error:
            log.warning("tracker %s did not close (%s)", self._name, _words(error))
