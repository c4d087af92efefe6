"""The tracker `tensorboard`: events in the run directory, a TensorBoard run for each stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slime.contracts import SampleRow, SampleTables
from slime.types import RunStatus, TrackedRun
from slime_plugin_samples.rows import best_and_worst, said_of

NUM_PROMPTS = 4
"""Whose responses are shown of a step: `samples/` beside it has all."""


class TensorBoard:
    """Writes events through tensorboardX's synchronous writer.

    Its `SummaryWriter` would hand them to a thread, which dies silently on a full disk and then blocks the run.
    """

    by_default = True

    def __init__(self) -> None:
        self._folder = Path()
        self._resumed: tuple[str, int] | None = None
        self._writers: dict[str, Any] = {}

    def start(self, run: TrackedRun) -> None:
        self._folder = run.folder / "tensorboard"

    def resume(self, stage: str, step: int) -> None:
        self._resumed = (stage, step)

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """One event with every value of a step, flushed."""
        from tensorboardX.proto.summary_pb2 import Summary

        scalars = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._write(stage, step, time, scalars)

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """A text of the best and the worst responses to a few prompts."""
        from tensorboardX.summary import text

        for name, rows in samples.items():
            shown = [row for pair in best_and_worst(rows, NUM_PROMPTS) for row in pair]
            self._write(stage, step, time, text(name, "\n\n".join(map(_text, shown))))

    def _write(self, stage: str, step: int, time: float, summary: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        writer = self._writers.get(stage) or self._open(stage)
        writer.write_event(Event(wall_time=time, step=step, summary=summary))
        writer.flush()

    def _open(self, stage: str) -> Any:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder = self._folder / stage
        folder.mkdir(parents=True, exist_ok=True)
        # The name has the time in whole seconds only, and the writer truncates an existing file: hence the suffix.
        writer = EventsWriter(str(folder / "events"), filename_suffix=f".{len(list(folder.iterdir()))}")
        # TensorBoard hides what an earlier session wrote from this step on.
        step = self._resumed[1] + 1 if self._resumed and self._resumed[0] == stage else 0
        writer.write_event(Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START)))
        self._writers[stage] = writer
        return writer

    def finish(self, status: RunStatus) -> None:
        """Flush and close every stage's file."""
        for writer in self._writers.values():
            writer.close()


def _text(row: SampleRow) -> str:
    """Markdown, in which indented lines stand as they are."""
    asked = [f"{message['role']}: {message['content']}" for message in row["messages"]]
    lines = "\n\n".join([*asked, f"label: {row['label']}", row["response"]]).splitlines()
    return "\n".join([f"**prompt {row['prompt']}**: {said_of(row)}", "", *(f"    {line}" for line in lines)])
