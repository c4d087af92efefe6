"""A run's metrics as they grow: the curves of each stage, and how far it is."""

from __future__ import annotations

import math
import secrets
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from slime.observe.metrics import HELD_OUT, LOSS, REWARD, SAVING, STAGES, TOKENS_PER_S, Row, read_lines

MAX_POINTS = 1024
COLUMNS = ("stage", "step", "time")
WHOLE, EVALUATING = "seconds/step", "seconds/eval"
"""What a row of a step has, and that of an evaluation before the first step lacks; and a part of it."""
ABSENT_IS_0 = ("seconds/", "filter/drop/", "buffer/drop/")
"""Beginnings of names that a step's row lacks where the value is 0."""
SEEN_SECONDS, SEEN_TOKENS = "seen/seconds", "seen/tokens"
"""Sums from the first step on: time in steps and checkpoints, and tokens that were trained on."""


class Curves:
    """Every metric of one stage. A point stands for one step, until there are more than `max_points`; then two, then
    four. It has their mean, and their least and largest value, so that peaks survive (minimum and maximum by bucket). A
    value that is not finite leaves a gap."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points, self._width, self._num_rows = max_points, 1, 0
        self._steps, self._num_steps = array("q"), array("q")
        self._columns: dict[str, _Column] = {}
        self._shape = secrets.token_hex(4)  # like no other: changes with what would change points that a reader has

    def add(self, row: Row) -> None:
        """Take the row of a step, after those of the steps before it."""
        if not self._steps or self._steps[-1] // self._width != row["step"] // self._width:
            self._steps.append(0)
            self._num_steps.append(0)
            for column in self._columns.values():
                column.append()
        self._steps[-1] = row["step"]
        self._num_steps[-1] += WHOLE in row
        self._num_rows += 1
        for name, value in row.items():
            if name not in COLUMNS:
                if name not in self._columns:
                    self._columns[name] = _Column(len(self._steps))
                    self._shape = secrets.token_hex(4)
                self._columns[name].add(value)
        if len(self._steps) > self._max_points:
            self._widen()

    def since(self, cursor: str, most: int = MAX_POINTS, names: Sequence[str] | None = None) -> dict[str, Any] | None:
        """What a reader lacks: from which point on, `steps`, `columns` by name, and where a point stands for several
        steps also `lows` and `highs`; None if nothing.

        Args:
            cursor: of the answer that the reader has; empty for none.
            most: points that the reader wants at most; always the same, with one cursor.
            names: of the columns that it wants, with `*`; None for all. `names` of the answer has all that there are.
        """
        by = 1
        while len(self._steps) > by * most:
            by *= 2
        ends = [*range(by, len(self._steps), by), len(self._steps)]
        shape = f"{self._shape}-{by}"
        newest = f"{shape}.{len(ends) - 1}.{self._num_rows}"
        if cursor == newest:
            return None
        known, _, rest = cursor.partition(".")
        first = int(rest.partition(".")[0]) if known == shape else 0
        spans = [slice(end - (end - 1) % by - 1, end) for end in ends[first:]]
        num_steps = [sum(self._num_steps[span]) for span in spans]
        wanted = [name for name in self._columns if names is None or any(_matches(name, each) for each in names)]
        part = {"cursor": newest, "from": first, "steps": [self._steps[span.stop - 1] for span in spans]}
        parts = {
            "columns": _Column.mean,
            **({"lows": _Column.low, "highs": _Column.high} if by * self._width > 1 else {}),
        }
        for key, value in parts.items():
            part[key] = {name: self._read(name, value, spans, num_steps) for name in wanted}
        return part | {"names": list(self._columns)}

    def _read(
        self, name: str, value: Callable[[_Column, slice, int | None], float], spans: list[slice], num_steps: list[int]
    ) -> list[float | None]:
        """With six digits, which no screen tells apart; None for a gap."""
        value = _Column.high if name.startswith("seen/") else value
        counts = num_steps if name.startswith(ABSENT_IS_0) else [None] * len(spans)
        found = [value(self._columns[name], span, count) for span, count in zip(spans, counts, strict=True)]
        return [float(f"{each:.6g}") if math.isfinite(each) else None for each in found]

    def _widen(self) -> None:
        self._width *= 2
        self._shape = secrets.token_hex(4)
        keys = [step // self._width for step in self._steps]
        begins = [at for at, key in enumerate(keys) if at == 0 or key != keys[at - 1]]
        spans = [slice(begin, end) for begin, end in zip(begins, [*begins[1:], len(keys)], strict=True)]
        self._steps = array("q", [self._steps[span.stop - 1] for span in spans])
        self._num_steps = array("q", [sum(self._num_steps[span]) for span in spans])
        for column in self._columns.values():
            column.merge(spans)


class _Column:
    """Of one metric, for each point: sum, least and largest of the values, and how many there are."""

    def __init__(self, length: int) -> None:
        self._sums, self._lows, self._highs = (array("d", [empty]) * length for empty in (0.0, math.inf, -math.inf))
        self._counts = array("q", [0]) * length

    def append(self) -> None:
        self._sums.append(0.0)
        self._lows.append(math.inf)
        self._highs.append(-math.inf)
        self._counts.append(0)

    def add(self, value: float) -> None:
        self._sums[-1] += value
        self._lows[-1] = min(self._lows[-1], value)
        self._highs[-1] = max(self._highs[-1], value)
        self._counts[-1] += 1

    def merge(self, spans: list[slice]) -> None:
        """Make one point of those of each span."""
        self._sums = array("d", [sum(self._sums[span]) for span in spans])
        self._lows = array("d", [min(self._lows[span]) for span in spans])
        self._highs = array("d", [max(self._highs[span]) for span in spans])
        self._counts = array("q", [sum(self._counts[span]) for span in spans])

    def mean(self, span: slice, count: int | None) -> float:
        """Of the values, or over `count` steps, of which those without a value have 0. Not finite: there is none."""
        count = sum(self._counts[span]) if count is None else count
        return sum(self._sums[span]) / count if count else math.nan

    def low(self, span: slice, count: int | None) -> float:
        return min(self._known(self._lows, span, count))

    def high(self, span: slice, count: int | None) -> float:
        return max(self._known(self._highs, span, count))

    def _known(self, bounds: array[float], span: slice, count: int | None) -> list[float]:
        if count == 0 or not math.isfinite(sum(self._sums[span])):
            return [math.nan]
        return [*bounds[span], *[0.0] * bool(count and count > sum(self._counts[span]))]


def _matches(name: str, pattern: str) -> bool:
    before, star, after = pattern.partition("*")
    return name == pattern or bool(star and name.startswith(before) and name.endswith(after))


PACE_STEPS = 20
"""The time left is the mean time of this many latest steps, times the steps left."""
RESULTS = {"held_out": HELD_OUT, "reward": REWARD, "loss": LOSS}
"""The most telling one first."""


class StageProgress:
    """Of one stage.

    Args:
        max_points: of its curves.

    Attributes:
        step: the newest.
        results: first and last (step, value) of those of `RESULTS` that the stage has.
        seconds: of all steps, with the checkpoints between them.
        tokens: that they trained on.
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self.curves = Curves(max_points)
        self.step = 0
        self.results: dict[str, list[tuple[int, float]]] = {}
        self.seconds = self.tokens = 0.0
        self._training_s = 0.0
        self._pace: deque[float] = deque(maxlen=PACE_STEPS)

    def add(self, row: Row) -> None:
        self.step = row["step"]
        for result, name in RESULTS.items():
            if name in row:
                self.results[result] = [*self.results.get(result, [])[:1], (row["step"], row[name])]
        seconds = row.get(WHOLE, 0.0) + row.get(SAVING, 0.0)
        self.seconds += seconds
        if WHOLE in row:
            self._pace.append(seconds)
        if TOKENS_PER_S in row:
            self.tokens += row[TOKENS_PER_S] * row.get(WHOLE, 0.0)
            self._training_s += row.get(WHOLE, 0.0) - row.get(EVALUATING, 0.0)
        seen = {SEEN_SECONDS: self.seconds, SEEN_TOKENS: self.tokens}
        self.curves.add(row | {name: value for name, value in seen.items() if value})

    @property
    def tokens_per_s(self) -> float | None:
        """Mean over the steps, without the time of evaluations."""
        return self.tokens / self._training_s if self._training_s > 0 else None

    @property
    def step_seconds(self) -> float | None:
        """Mean of the latest steps."""
        return fmean(self._pace) if self._pace else None


class RunProgress:
    """Of a run directory, which may lie there or grow.

    Args:
        folder: the run directory.
        max_points: of each curve.

    Attributes:
        stages: those that have rows, in the order they run.
        last_time: Unix seconds of the newest row; 0: there is none.
    """

    def __init__(self, folder: Path, max_points: int = MAX_POINTS) -> None:
        self._path, self._max_points = folder / "metrics.jsonl", max_points
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
            self.stages.setdefault(row["stage"], StageProgress(self._max_points)).add(row)
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
            found |= {"tokens_per_s": now.tokens_per_s, "tokens": now.tokens, "results": now.results}
            if running and total is not None and now.step_seconds is not None:
                found["seconds_left"] = now.step_seconds * (total - now.step)
        return found
