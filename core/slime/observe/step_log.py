"""A step's metrics as the event that every subscriber takes them from."""

from __future__ import annotations

from collections.abc import Mapping

from slime.events import Events, Step
from slime.observe.metrics import TOKENS_PER_S
from slime.observe.stopwatch import Stopwatch


class StepLog:
    """Publishes `Step` events; metrics.jsonl has the row when a method returns."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._late: dict[str, float] = {}

    def late(self, values: Mapping[str, float]) -> None:
        """Metrics that were measured after their step's row was written, such as those of a checkpoint: the next step's
        row has them, those of one name added up."""
        for name, value in values.items():
            self._late[name] = self._late.get(name, 0.0) + value

    def complete(self, stage: str, step: int, values: Mapping[str, float], watch: Stopwatch, num_tokens: float) -> None:
        """A step was run to its end; its row also says where its time went, and in which share of it the trainers
        waited for samples."""
        seconds = watch.seconds()
        row = {**values, **self._late, **seconds, TOKENS_PER_S: num_tokens / seconds["seconds/step"]}
        if "seconds/generate" in seconds:
            waited_s = seconds["seconds/generate"] + seconds["seconds/reward"]
            row["trainers/idle_share"] = waited_s / seconds["seconds/step"]
        self._late = {}
        self._publish(stage, step, row, complete=True)

    def incomplete(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a step that an alarm ends, or from before the first step."""
        self._publish(stage, step, values, complete=False)

    def _publish(self, stage: str, step: int, values: Mapping[str, float], *, complete: bool) -> None:
        numbers = {name: float(value) for name, value in values.items()}
        self._events.publish(Step(stage, step, numbers, complete))
