"""The tracker `tensorboard`: events in the run directory, a TensorBoard run for each stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slime.contracts import SampleRow, SampleTables
from slime.types import RunStatus, TrackedRun
from slime_observers.samples.rows import best_and_worst, said_of

NUM_PROMPTS = 4
"""Prompts of a step whose responses are shown: `samples/` beside it has all."""


class TensorBoard:
    """Writes events through TensorBoard's own messages and records, a file for each stage and session. Steps that run
    again in one have another.

    Its `EventFileWriter` would hand them to a thread, which dies silently on a full disk and then blocks the run.
    """

    by_default = find_spec("tensorboard") is not None

    def __init__(self) -> None:
        self._folder = Path()
        self._resumed: tuple[str, int] | None = None
        self._writers: dict[str, Any] = {}

    def start(self, run: TrackedRun) -> None:
        self._folder = run.folder / "tensorboard"

    def resume(self, stage: str, step: int) -> None:
        self._resumed = (stage, step)
        self._close()

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """One event with every value of a step, flushed."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._write(stage, step, time, summary=scalars)

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """A text of the best and the worst responses to a few prompts."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        for name, rows in samples.items():
            shown = [row for pair in best_and_worst(rows, NUM_PROMPTS) for row in pair]
            text = TensorProto(dtype=DT_STRING, string_val=["\n\n".join(map(_text, shown)).encode()])
            value = Summary.Value(tag=name, tensor=text, metadata=create_summary_metadata(name, ""))
            self._write(stage, step, time, summary=Summary(value=[value]))

    def _write(self, stage: str, step: int, time: float, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        writer = self._writers.get(stage) or self._open(stage)
        writer.write(Event(wall_time=time, step=step, **what).SerializeToString())
        writer.flush()

    def _open(self, stage: str) -> Any:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = self._folder / stage
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # TensorBoard reads the files in the order of their names.
        file = folder / f"events.out.tfevents.{now:.0f}.{len(list(folder.iterdir()))}"
        self._writers[stage] = RecordWriter(file.open("xb"))
        self._write(stage, 0, now, file_version="brain.Event:2")
        # It hides what an earlier session wrote from this step on.
        step = self._resumed[1] + 1 if self._resumed and self._resumed[0] == stage else 0
        self._write(stage, step, now, session_log=SessionLog(status=SessionLog.START))
        return self._writers[stage]

    def finish(self, status: RunStatus) -> None:
        """Flush and close every stage's file."""
        self._close()

    def _close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()


def _text(row: SampleRow) -> str:
    """Markdown, in which indented lines stand as they are."""
    asked = [f"{message['role']}: {message['content']}" for message in row["messages"]]
    lines = "\n\n".join([*asked, f"label: {row['label']}", row["response"]]).splitlines()
    return "\n".join([f"**prompt {row['prompt']}**: {said_of(row)}", "", *(f"    {line}" for line in lines)])
