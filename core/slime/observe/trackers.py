"""The chosen trackers of a run: each gets every row in order, and none can stop the run once it has begun."""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from slime.contracts import SampleTables, SampleTracker, Tracker
from slime.errors import SlimeError
from slime.types import RunStatus, TrackedRun

RETRY_S = 60.0
"""How long a tracker that failed is left alone: one that waits for a server costs the run that time each step."""
HIDDEN = "(not shown to trackers)"
"""In place of environment variables, which may be somebody's keys."""

Row = tuple[str, int, float, Mapping[str, float]]

log = logging.getLogger(__name__)


class Trackers:
    """All of them at once; a context manager between `start` and `finish`.

    A row that a tracker did not take waits and comes again, first in order, when the next one is due. Samples do not
    wait: they would fill the memory of a long run.

    Args:
        chosen: by name.
        clock: seconds, for when to try again.
    """

    def __init__(self, chosen: Mapping[str, Tracker], clock: Callable[[], float] = time.monotonic) -> None:
        self._trackers = {name: _Guarded(name, tracker, clock) for name, tracker in chosen.items()}
        self._started: list[_Guarded] = []

    def start(self, run: TrackedRun) -> Trackers:
        """Connect all.

        Raises:
            SlimeError: one does not start.
        """
        for guarded in self._trackers.values():
            try:
                guarded.connect(run)
            except SlimeError:
                self.finish("failed")
                raise
            self._started.append(guarded)
        return self

    def resume(self, stage: str, step: int) -> None:
        """The run continues after this step."""
        for guarded in self._started:
            guarded.tracker.resume(stage, step)

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float], samples: SampleTables) -> None:
        """Hand one row to each, and what is kept of the step's samples to those that show samples."""
        for guarded in self._started:
            guarded.add((stage, step, time, values), samples)

    def finish(self, status: RunStatus) -> None:
        """Hand over what still waits, and close."""
        while self._started:
            self._started.pop(0).finish(status)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed: RunStatus = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        self.finish(failed if error else "finished")


class _Guarded:
    """One tracker, with the rows that it has not taken."""

    def __init__(self, name: str, tracker: Tracker, clock: Callable[[], float]) -> None:
        self._name, self.tracker, self._clock = name, tracker, clock
        self._waiting: deque[Row] = deque()
        self._failed_at: float | None = None
        self._said_of_samples = False

    def connect(self, run: TrackedRun) -> None:
        try:
            self.tracker.start(run)
        except SlimeError:
            raise
        except Exception as error:
            where, todo = (
                f"observe.trackers.{self._name}",
                f"Correct its settings, or run without: observe.trackers.{self._name}=false.",
            )
            raise SlimeError(f"it does not start ({_words(error)})", where=where, todo=todo) from error

    def add(self, row: Row, samples: SampleTables) -> None:
        self._waiting.append(row)
        if self._failed_at is None or self._clock() - self._failed_at >= RETRY_S:
            self._hand_over()
        if samples and not self._waiting and isinstance(self.tracker, SampleTracker):
            self._show(self.tracker, row, samples)

    def _show(self, tracker: SampleTracker, row: Row, samples: SampleTables) -> None:
        stage, step, time, _ = row
        try:
            tracker.log_samples(stage, step, time, samples)
        except Exception as error:  # noqa: BLE001  (a plugin's code, or the network: the run is worth more)
            if not self._said_of_samples:
                what = "tracker %s lacks samples of %s step %d (%s): samples/ has them; later ones are tried in silence"
                log.warning(what, self._name, stage, step, _words(error))
            self._said_of_samples = True

    def _hand_over(self) -> None:
        try:
            while self._waiting:
                self.tracker.log(*self._waiting[0])
                self._waiting.popleft()
        except Exception as error:  # noqa: BLE001  (a plugin's code, or the network: the run is worth more)
            if self._failed_at is None:
                stage, step, *_ = self._waiting[0]
                what = "the run goes on without it, its rows wait, and metrics.jsonl has them"
                log.warning("tracker %s failed at %s step %d (%s): %s", self._name, stage, step, _words(error), what)
            self._failed_at = self._clock()
        else:
            if self._failed_at is not None:
                log.warning("tracker %s works again, and has every row", self._name)
            self._failed_at = None

    def finish(self, status: RunStatus) -> None:
        if self._waiting:
            self._hand_over()
        if self._waiting:
            log.warning("tracker %s lacks %d rows; metrics.jsonl has them", self._name, len(self._waiting))
        try:
            self.tracker.finish(status)
        except Exception as error:  # noqa: BLE001  (as above)
            log.warning("tracker %s did not close (%s)", self._name, _words(error))


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved config without the values of environment variables.

    Args:
        config: section -> key -> value, as in config.yaml.
    """
    shown = copy.deepcopy(dict(config))
    for holder in (shown.get("cluster", {}), *shown.get("rollout", {}).get("engines", {}).values()):
        with suppress(KeyError):
            holder["environment"] = dict.fromkeys(holder["environment"], HIDDEN)
    return shown
