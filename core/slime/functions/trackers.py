"""Tracker `function`: a function that gets the metrics of each step, or a class with the methods of
`slime.contracts.Tracker`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from slime.by_path.called import Form, Own, PathOptions
from slime.contracts import Tracker
from slime.types import RunStatus, TrackedRun


@dataclass
class TrackerOptions(PathOptions):
    form: ClassVar[Form] = Form(
        ("step", "metrics", "stage", "time", "run"), ("step", "metrics"), ("start", "resume", "log", "finish")
    )


def own_tracker(**options: Any) -> Tracker:
    own = Own(TrackerOptions(**options), "observe.trackers.path")
    if own.made is None:
        return FunctionTracker(own)
    for name in (*TrackerOptions.form.methods, "log_samples"):
        if hasattr(own.made, name):
            setattr(own.made, name, own.watched(getattr(own.made, name)))
    made: Tracker = own.made
    return made


class FunctionTracker:
    def __init__(self, own: Own) -> None:
        self._own = own

    def start(self, run: TrackedRun) -> None:
        self._run = run

    def resume(self, stage: str, step: int) -> None:
        """Nothing is kept: later steps come again."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        self._own.call({"step": step, "metrics": dict(values), "stage": stage, "time": time, "run": self._run})

    def finish(self, status: RunStatus) -> None:
        """Nothing was opened."""
