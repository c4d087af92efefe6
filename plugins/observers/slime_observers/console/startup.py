"""Lines on what happens until the first step: a model of some size is up after minutes."""

from __future__ import annotations

import re
import time
from pathlib import Path

from rich.console import Console

from slime.events import Event, Ready, Starting, Waiting
from slime.printable import printable

WAITING_S = 10.0
"""Seconds between lines that say who is waited for."""
MAX_NAMED = 4
_TAIL_BYTES, _MAX_SAID = 4096, 100
_STAMP = re.compile(r"\x1b\[[0-9;]*m|^\[\d{4}-[^]]*\]\s*")
"""Colours, and the time and rank that SGLang begins a line with."""
_WARNING = re.compile(
    r"^\[?[IWEF]\d{4,8} [\d:.]+ .*$|^.*:\d+: \w*Warning: .*(\n[ ]+.*)?$|^[ ]+warnings\.warn\(.*$", re.MULTILINE
)
"""Lines of glog, torch and absl (`W1123 11:22:33.123 ...`), and of Python's `warnings` with the line of code that each
quotes: they do not say how far a process is."""


class Startup:
    """Lines with the seconds since the start, between `Starting` and `Ready`; a subscriber of the run's events."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._started = self._told = time.monotonic()
        self._over = False

    def __call__(self, event: Event) -> None:
        match event:
            case Starting():
                self._over, self._told = False, time.monotonic()
                self._say(event.what)
            case Waiting():
                self._waiting(event)
            case Ready():
                self._say(event.what)
                self._over = True

    def _say(self, what: str) -> None:
        if what:
            self._told = time.monotonic()
            line = printable(f"{self._told - self._started:4.0f} s  {what}")
            self._console.print(line, markup=False, soft_wrap=True)

    def _waiting(self, event: Waiting) -> None:
        """Say who is waited for, and the last line of the first one's log."""
        if not self._over and time.monotonic() - self._told >= WAITING_S:
            whom = event.whom
            more = f" and {len(whom) - MAX_NAMED} more" if len(whom) > MAX_NAMED else ""
            said = last_line(event.logs / f"{whom[0]}.log") if event.logs and whom else ""
            told = f": {said}" if said else ""
            self._say(f"... {event.what}: waiting for {', '.join(whom[:MAX_NAMED])}{more}{told}")


def last_line(log: Path) -> str:
    """The last words in a log, shortened, or the newest state of a progress bar, without libraries' warnings; empty:
    nothing yet."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            tail = file.read().decode(errors="replace")
            tail = tail[tail.find("\n") + 1 :] if file.tell() > _TAIL_BYTES else tail  # the first line is half a one
    except FileNotFoundError:
        return ""
    lines = [_STAMP.sub("", part).strip() for part in re.split(r"[\r\n]", _WARNING.sub("", tail))]
    said = next((line for line in reversed(lines) if line), "")
    return said if len(said) <= _MAX_SAID else f"{said[: _MAX_SAID - 3]}..."
