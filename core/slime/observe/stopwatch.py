"""The wall time of one step, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from slime.observe.spans import span


class Stopwatch:
    """The phases of one step; what no phase covers is `other`. Starts when it is made.

    with watch("generate"):
        ...
    watch.add("logprobs", seconds_measured_elsewhere)
    metrics |= watch.seconds()

    Phases may repeat (they add up) but not nest: time inside two phases would be counted twice.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._phases: dict[str, float] = {}
        self._running = ""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the block's wall time, also when it raises, as `phase`."""
        assert not self._running, f"phase '{phase}' inside phase '{self._running}'"
        self._running, started = phase, time.perf_counter()
        try:
            with span(phase):
                yield
        finally:
            self._running = ""
            self.add(phase, time.perf_counter() - started)

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds inside this step's wall time that were measured elsewhere, as by a trainer rank."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def add_all(self, values: Mapping[str, float]) -> None:
        """Count every `seconds/<phase>` among the metrics `values`, measured elsewhere."""
        for name, value in values.items():
            if name.startswith("seconds/"):
                self.add(name.removeprefix("seconds/"), value)

    def seconds(self) -> dict[str, float]:
        """`seconds/<phase>` in the order they first ran, then `seconds/other` and `seconds/step`, the wall time."""
        wall = time.perf_counter() - self._started
        phases = self._phases | {"other": wall - sum(self._phases.values()), "step": wall}
        return {f"seconds/{name}": value for name, value in phases.items()}
