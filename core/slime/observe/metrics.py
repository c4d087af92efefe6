"""metrics.jsonl: one row a step, written through, never double after a resume; then the trackers get it.

A row is one flat JSON object: `stage`, `step`, `time` (Unix seconds) and the values by name (`rollout/reward_mean`,
`loss`, `seconds/generate`, ...). JSON has no NaN: a value that is not finite is written as the string "NaN",
"Infinity" or "-Infinity" and warned of, so that the file stays JSON, nothing becomes null, and `float(...)` reads it.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from slime import files
from slime.contracts import SampleTables
from slime.errors import SlimeError

if TYPE_CHECKING:
    from slime.observe.trackers import Trackers
    from slime.run_dir import RunDir

STAGES = ("sft", "rl")
"""In the order they run; a row's place in the run is (stage, step)."""

REWARD, HELD_OUT, LOSS = "rollout/reward_mean", "eval/reward_mean", "train/loss"
TOKENS_PER_S, LOGPROB_DIFF = "tokens_per_s", "train/logprob_diff_mean"
SAVING = "seconds/checkpoint"
"""Names that the progress display, the report and the log-prob alarm look for. A checkpoint is saved between two steps;
its time stands in the row of the later one, and is no part of `seconds/step`."""

NOT_FINITE = ("NaN", "Infinity", "-Infinity")

Row = dict[str, Any]
Position = tuple[str, int]
"""(stage, step): where in the run something happened."""

log = logging.getLogger(__name__)


class MetricsLog:
    """Writes the metrics of one run.

    Args:
        run: the run directory, held by this process.
        trackers: get every row too.
        resumed: (stage, step) of the checkpoint the run continues from; None starts from nothing. Rows after it move to
            `logs/metrics-abandoned.jsonl`, because their steps run again.
    """

    def __init__(self, run: RunDir, trackers: Trackers, resumed: Position | None = None) -> None:
        self._path, self._trackers = run.metrics, trackers
        with files.disk_errors(self._path):
            _truncate(run, resumed)
            # Unbuffered: after a failed write nothing is kept back that a later row would be glued to.
            self._file = self._path.open("ab", buffering=0)
        run.hold(self._file, self._path)
        if resumed:
            trackers.resume(*resumed)

    def log(
        self, stage: str, step: int, values: Mapping[str, float], samples: SampleTables = MappingProxyType({})
    ) -> None:
        """Append one row; it is in the operating system's hands when this returns.

        Args:
            samples: of the step, for the trackers.

        Raises:
            SlimeError: the disk is full.
        """
        assert stage in STAGES, f"stage {stage}"
        numbers = {name: float(value) for name, value in values.items()}
        now = time.time()
        row = {"stage": stage, "step": step, "time": round(now, 3)}
        assert not row.keys() & numbers.keys(), "a metric has the name of a column"
        _warn_not_finite(stage, step, numbers)
        with files.disk_errors(self._path):
            _write_all(self._file, json.dumps(row | {name: _to_json(value) for name, value in numbers.items()}))
        self._trackers.log(stage, step, now, numbers, samples)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_rows(path: Path) -> list[Row]:
    """Every row of a metrics.jsonl, oldest first; values are floats again. A torn last line is left out.

    Raises:
        SlimeError: a line is not a row.
    """
    return [{name: _from_json(value) for name, value in row.items()} for row, _ in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[Row, bytes]]:
    """Rows with their raw lines; a kill can tear only the last one."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if (row := _row(line)) is None:
            todo = "Repair or delete the line."
            raise SlimeError("this line is not a row of metrics", where=f"{path}:{number}", todo=todo)
        yield row, line


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
    for row, line in _lines(run.metrics):
        keep = resumed is not None and _place((row["stage"], row["step"])) <= _place(resumed)
        (kept if keep else abandoned).append(line)
    if abandoned:
        with (run.logs / "metrics-abandoned.jsonl").open("ab") as file:
            file.writelines(abandoned)
    files.write_atomic(run.metrics, b"".join(kept))


def _place(position: Position) -> tuple[int, int]:
    stage, step = position
    return STAGES.index(stage), step


def _warn_not_finite(stage: str, step: int, values: Mapping[str, float]) -> None:
    if names := [f"{name} = {value}" for name, value in values.items() if not math.isfinite(value)]:
        log.warning("%s step %d: not a finite number: %s", stage, step, ", ".join(names))


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _from_json(value: Any) -> Any:
    return float(value) if value in NOT_FINITE else value


def _write_all(file: Any, text: str) -> None:
    """Write a line; a full disk may take part of it before it refuses the rest."""
    rest = text.encode() + b"\n"
    while rest:
        rest = rest[file.write(rest) :]
