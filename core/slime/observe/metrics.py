"""metrics.jsonl: one row a step, written through, never double after a resume.

A row is one flat JSON object: `stage`, `step`, `time` (Unix seconds) and the values by name (`rollout/reward_mean`,
`loss`, `seconds/generate`, ...). JSON has no NaN: a value that is not finite is written as the string "NaN",
"Infinity" or "-Infinity" and warned of, so that the file stays JSON, nothing becomes null, and `float(...)` reads it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from io import BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime import files
from slime.errors import SlimeError
from slime.events import Event, Restored, Step
from slime.types import RL, SFT

if TYPE_CHECKING:
    from slime.run_dir import RunDir

STAGES = (SFT, RL)
"""In the order they run; a row's place in the run is (stage, step)."""

REWARD, HELD_OUT, LOSS = "rollout/reward_mean", "eval/reward_mean", "train/loss"
LENGTH, ENTROPY = "rollout/response_length_mean", "train/entropy"
REWARD_STD, ZERO_VARIANCE = "rollout/reward_std", "rollout/zero_variance_share"
TRUNCATED = "rollout/truncated_share"
TOKENS_PER_S, LOGPROB_DIFF = "tokens_per_s", "train/logprob_diff_mean"
SAVING, COPYING = "seconds/checkpoint", "seconds/copy"
"""Names that the progress display, the report and the alarms look for. A checkpoint is saved between two steps; its
time is in the row of the later one, and no part of `seconds/step`; so is a copy in host memory."""

NOT_FINITE = ("NaN", "Infinity", "-Infinity")

Row = dict[str, Any]
Position = tuple[str, int]
"""(stage, step): where in the run something happened."""

log = logging.getLogger(__name__)


class MetricsLog:
    """Writes the metrics of one run, as a subscriber of its events; a context manager that closes the file."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._file: FileIO | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case Restored():
                self._open(event.position)
            case Step():
                self._write(event)

    def _open(self, resumed: Position | None) -> None:
        """Rows after `resumed`, all of them if it is None, move to `logs/metrics-abandoned.jsonl`, because their steps
        run again. Comes again where the run returns to a checkpoint."""
        self.__exit__()
        with files.disk_errors(self._run.metrics):
            _truncate(self._run, resumed)
            # Unbuffered: after a failed write nothing is kept back that a later row would be glued to.
            self._file = self._run.metrics.open("ab", buffering=0)
        self._run.hold(self._file, self._run.metrics)

    def _write(self, step: Step) -> None:
        """Append one row; it is in the operating system's hands when this returns. Raises SlimeError if the disk is
        full, or this is no longer the file that the run opened."""
        assert self._file, "restored before the first step"
        assert step.stage in STAGES, f"stage {step.stage}"
        row = {"stage": step.stage, "step": step.step, "time": round(step.time, 3)}
        assert not row.keys() & step.values.keys(), "a metric has the name of a column"
        self._run.require_intact()
        if odd := [f"{name} = {value}" for name, value in step.values.items() if not math.isfinite(value)]:
            log.warning("%s step %d: not a finite number: %s", step.stage, step.step, ", ".join(odd))
        row |= {name: value if math.isfinite(value) else json.dumps(value) for name, value in step.values.items()}
        with files.disk_errors(self._run.metrics):
            rest = json.dumps(row).encode() + b"\n"
            while rest:  # a full disk may take part of it before it refuses the rest
                rest = rest[self._file.write(rest) :]

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()


def read_rows(path: Path) -> list[Row]:
    """Every row of a metrics.jsonl, oldest first; values are floats again. A torn last line is left out. Raises
    SlimeError if a line is not a row."""
    return [row for row, _ in read_lines(path)]


def read_lines(path: Path, skipped: int = 0) -> Iterator[tuple[Row, bytes]]:
    """Rows with their raw lines, but the first `skipped` bytes, which must be whole lines; a kill can tear only the
    last line. Raises SlimeError if a line is not a row."""
    with path.open("rb") if path.exists() else BytesIO() as file:
        file.seek(skipped)
        lines = file.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if (row := _row(line)) is None:
            before = path.read_bytes()[:skipped].count(b"\n")
            where, todo = f"{path}:{before + number}", "Repair or delete the line."
            raise SlimeError("this line is not a row of metrics", where=where, todo=todo)
        yield {name: float(value) if value in NOT_FINITE else value for name, value in row.items()}, line


def _row(line: bytes) -> Row | None:
    """The row of a line; None for what is no row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and row.get("stage") in STAGES and isinstance(row.get("step"), int)
    return row if is_row else None


def _truncate(run: RunDir, resumed: Position | None) -> None:
    """Keep the rows up to and with `resumed`, set the others aside, forget a torn last line."""
    kept: list[bytes] = []
    abandoned: list[bytes] = []
    for row, line in read_lines(run.metrics):
        keep = resumed is not None and _place((row["stage"], row["step"])) <= _place(resumed)
        (kept if keep else abandoned).append(line)
    if abandoned:
        with (run.logs / "metrics-abandoned.jsonl").open("ab") as file:
            file.writelines(abandoned)
    files.write_atomic(run.metrics, b"".join(kept))


def _place(position: Position) -> tuple[int, int]:
    stage, step = position
    return STAGES.index(stage), step
