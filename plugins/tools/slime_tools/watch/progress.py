"""A run's metrics as they grow: the curves of each stage, and how far it is."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from statistics import fmean
from typing import Any

from slime.observe.metrics import HELD_OUT, LOSS, REWARD, SAVING, STAGES, TOKENS_PER_S, Row, read_lines
from slime_tools.watch.curves import WHOLE, Curves

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
        """That of the newest row."""
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
