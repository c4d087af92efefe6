"""A run's metrics as they grow: the curves of each stage, and how far it is."""

from __future__ import annotations

import math
import secrets
from collections import deque
from pathlib import Path
from statistics import fmean
from typing import Any

from slime.observe.metrics import HELD_OUT, LOSS, REWARD, SAVING, STAGES, TOKENS_PER_S, Row, read_lines

MAX_POINTS = 400
COLUMNS = ("stage", "step", "time")
WHOLE = "seconds/step"
"""What a row of a step has, and that of an evaluation before the first step lacks."""
ABSENT_IS_0 = ("seconds/", "filter/drop/", "buffer/drop/")
"""Beginnings of names that a step's row lacks where the value is 0."""


class Curves:
    """Every metric of one stage. A point is the mean of the steps that it stands for: one, until there are more than
    `MAX_POINTS`; then two, then four. A value that is not finite leaves a gap."""

    def __init__(self) -> None:
        self._width = 1
        self._points: dict[int, _Point] = {}
        self._names: dict[str, None] = {}
        self._shape = secrets.token_hex(4)  # like no other: changes with what would change points that a reader has
        self._num_rows = 0

    def add(self, row: Row) -> None:
        """Take the row of a step, after those of the steps before it."""
        values = {name: value for name, value in row.items() if name not in COLUMNS}
        self._points.setdefault(row["step"] // self._width, _Point()).add(row["step"], values)
        self._num_rows += 1
        if not values.keys() <= self._names.keys():
            self._names.update(dict.fromkeys(values))
            self._shape = secrets.token_hex(4)
        if len(self._points) > MAX_POINTS:
            self._widen()

    def since(self, cursor: str) -> dict[str, Any] | None:
        """What a reader lacks: from which point on, `steps`, and `columns` by name; None if nothing.

        Args:
            cursor: of the answer that the reader has; empty for none.
        """
        newest = f"{self._shape}.{max(0, len(self._points) - 1)}.{self._num_rows}"
        if cursor == newest:
            return None
        shape, _, rest = cursor.partition(".")
        begin = int(rest.partition(".")[0]) if shape == self._shape else 0
        points = list(self._points.values())[begin:]
        columns = {name: [point.mean(name) for point in points] for name in self._names}
        return {"cursor": newest, "from": begin, "steps": [point.step for point in points], "columns": columns}

    def _widen(self) -> None:
        self._width *= 2
        self._shape = secrets.token_hex(4)
        old, self._points = self._points, {}
        for key, point in old.items():
            self._points.setdefault(key // 2, _Point()).merge(point)


class _Point:
    """Sums over the steps that a point stands for."""

    def __init__(self) -> None:
        self.step = self._num_steps = 0
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, step: int, values: dict[str, float]) -> None:
        self.step = step
        self._num_steps += WHOLE in values
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def merge(self, later: _Point) -> None:
        self.step = later.step
        self._num_steps += later._num_steps
        for name, value in later._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + later._counts[name]

    def mean(self, name: str) -> float | None:
        """With six digits, which no screen tells apart; None for a gap."""
        count = self._num_steps if name.startswith(ABSENT_IS_0) else self._counts.get(name, 0)
        mean = self._sums.get(name, 0.0) / count if count else math.nan
        return float(f"{mean:.6g}") if math.isfinite(mean) else None


PACE_STEPS = 20
"""The time left is the mean time of this many latest steps, times the steps left."""
RESULTS = {"held_out": HELD_OUT, "reward": REWARD, "loss": LOSS}
"""The most telling one first."""


class StageProgress:
    """Of one stage.

    Attributes:
        step: the newest.
        results: first and last (step, value) of those of `RESULTS` that the stage has.
        seconds: of all steps, with the checkpoints between them.
    """

    def __init__(self) -> None:
        self.curves = Curves()
        self.step = 0
        self.results: dict[str, list[tuple[int, float]]] = {}
        self.tokens_per_s: float | None = None
        self.seconds = 0.0
        self._pace: deque[float] = deque(maxlen=PACE_STEPS)

    def add(self, row: Row) -> None:
        self.curves.add(row)
        self.step = row["step"]
        for result, name in RESULTS.items():
            if name in row:
                self.results[result] = [*self.results.get(result, [])[:1], (row["step"], row[name])]
        self.tokens_per_s = row.get(TOKENS_PER_S, self.tokens_per_s)
        seconds = row.get(WHOLE, 0.0) + row.get(SAVING, 0.0)
        self.seconds += seconds
        if WHOLE in row:
            self._pace.append(seconds)

    @property
    def step_seconds(self) -> float | None:
        """Mean of the latest steps."""
        return fmean(self._pace) if self._pace else None


class RunProgress:
    """Of a run directory, which may lie there or grow.

    Attributes:
        stages: those that have rows, in the order they run.
        last_time: Unix seconds of the newest row; 0: there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.jsonl"
        self._forget(None)

    def _forget(self, file: tuple[int, int] | None) -> None:
        self._file, self._num_read = file, 0
        self.stages: dict[str, StageProgress] = {}
        self.last_time = 0.0

    @property
    def stage(self) -> str | None:
        """Stage of the newest row."""
        return max(self.stages, key=STAGES.index, default=None)

    def read(self) -> None:
        """Take the rows that were written since the last time.

        Raises:
            SlimeError: a line is no row.
        """
        if not self._path.exists():
            return
        found = self._path.stat()
        if (found.st_dev, found.st_ino) != self._file or found.st_size < self._num_read:  # of a run that was resumed
            self._forget((found.st_dev, found.st_ino))
        for row, line in read_lines(self._path, self._num_read) if found.st_size > self._num_read else ():
            self.stages.setdefault(row["stage"], StageProgress()).add(row)
            self.last_time = row.get("time", 0.0)
            self._num_read += len(line)

    def head(self, totals: dict[str, int | None], *, running: bool) -> dict[str, Any]:
        """How far it is, for people.

        Args:
            totals: steps of each stage, as far as they are known.
            running: whether more steps may come.
        """
        seconds = sum(stage.seconds for stage in self.stages.values())
        found: dict[str, Any] = {"time": self.last_time, "seconds": seconds, "stage": self.stage}
        if self.stage:
            now, total = self.stages[self.stage], totals[self.stage]
            found |= {"step": now.step, "total": total, "step_seconds": now.step_seconds}
            found |= {"tokens_per_s": now.tokens_per_s, "results": now.results}
            if running and total is not None and now.step_seconds is not None:
                found["seconds_left"] = now.step_seconds * (total - now.step)
        return found
