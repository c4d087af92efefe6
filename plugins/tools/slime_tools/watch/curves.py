"""Curves of a run's metrics with a bounded number of points, sent as far as a reader lacks them."""

from __future__ import annotations

import math
import secrets
from typing import Any

from slime.observe.metrics import Row

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
