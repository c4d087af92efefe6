"""What is said of an actor that has died."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slime.errors import Death

if TYPE_CHECKING:
    from ray.exceptions import RayError

    from slime.cluster.watch import Member

LOG_BYTES = 1 << 16
"""Bytes of the end of a dead process's log, where its crash would be told."""
_CRASHES = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
"""Signal by the name that faulthandler writes."""


def died(member: Member, error: RayError, what: str, logs: Path) -> Death:
    """The death of an actor, with everything that it and Ray left to say."""
    log = logs / f"{member.name}.log"
    return Death(
        f"{_crash(log) or _as_ray_tells(error)} while {what}",
        where=str(member),
        todo=f"Read {log}, then start the same command again to resume.",
    )


def _crash(log: Path) -> str:
    """The signal, and where it struck, if faulthandler wrote both into the process's log."""
    with suppress(OSError), log.open("rb") as file:  # of another host, whose disk is not ours
        file.seek(max(log.stat().st_size - LOG_BYTES, 0))
        told = file.read().decode(errors="replace")
        if crash := re.search(r"^Fatal Python error: ([^\n]*)", told, re.M):
            name = _CRASHES.get(crash[1], crash[1])
            frame = re.search(r'Current thread .*?\n  File "([^"]*)", line (\d+) in (\S+)', told[crash.end() :], re.S)
            return f"was killed by {name}" + (f" in {frame[3]} ({Path(frame[1]).name}:{frame[2]})" if frame else "")
    return ""


def _as_ray_tells(error: RayError) -> str:
    """A process that had no time for a word was killed by SIGKILL: all other signals leave one."""
    told = str(error)
    if "End of file" in told:
        return "was killed by SIGKILL, it seems, as it left no word (for memory: see dmesg)"
    _, found, detail = told.partition("Worker exit detail: ")
    lines = [line.strip() for line in (detail if found else told).splitlines() if line.strip()]
    return f"died ({lines[0].rstrip('.')})" if lines else f"died ({type(error).__name__})"
