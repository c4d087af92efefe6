"""What happens until the first step, told as it happens: a model of some size is up after minutes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

WAITING_S = 10.0
"""How long something may last before it is told who is waited for, and again after each as long."""
MAX_NAMED = 4
_TAIL_BYTES, _MAX_SAID = 4096, 100
_STAMP = re.compile(r"\x1b\[[0-9;]*m|^\[\d{4}-[^]]*\]\s*")
"""Colours, and the time and rank that SGLang begins a line with."""


class Startup:
    """Lines with the seconds since the start. Says nothing more after `ready`, but for what is waited for `again`.

    Args:
        console: where to; standard output unless given.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._started = self._told = time.monotonic()
        self._over = False

    def say(self, what: str) -> None:
        """A line about what begins, or what is known now."""
        if not self._over:
            self._told = time.monotonic()
            self._console.print(f"{self._told - self._started:4.0f} s  {what}", markup=False, soft_wrap=True)

    def waiting(self, what: str, whom: Sequence[str], logs: Path | None = None) -> None:
        """May be called at any time: something still lasts, because of those.

        Args:
            logs: where each of them has one, whose last line says how far the first of them is.
        """
        if not self._over and time.monotonic() - self._told >= WAITING_S:
            more = f" and {len(whom) - MAX_NAMED} more" if len(whom) > MAX_NAMED else ""
            said = last_line(logs / f"{whom[0]}.log") if logs and whom else ""
            told = f": {said}" if said else ""
            self.say(f"... {what}: waiting for {', '.join(whom[:MAX_NAMED])}{more}{told}")

    def ready(self, what: str) -> None:
        """The last line."""
        self.say(what)
        self._over = True

    @contextmanager
    def again(self) -> Iterator[None]:
        """While something of the start is waited for after all."""
        over, self._over, self._told = self._over, False, time.monotonic()
        try:
            yield
        finally:
            self._over = over


def last_line(log: Path) -> str:
    """What a process said last, shortened; of a progress bar its newest state. Empty: nothing yet."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    lines = [line for part in re.split(r"[\r\n]", tail) if (line := _STAMP.sub("", part).strip())]
    said = lines[-1] if lines else ""
    return said if len(said) <= _MAX_SAID else f"{said[: _MAX_SAID - 3]}..."
