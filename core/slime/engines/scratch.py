"""What engines leave behind that have ended: the word of how they did, scratch folders and shared memory."""

from __future__ import annotations

import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path


def how_ended(code: int) -> str:
    """What the exit code of a process says, negative after a signal: `was killed by SIGKILL`."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@dataclass(frozen=True)
class ChildEnd:
    """A line of an engine's log: how one of its processes ended, and when the one above it saw that.

    Attributes:
        at: seconds since the epoch.
        how: by a signal, or by itself.
    """

    at: float
    pid: int
    how: str

    def __str__(self) -> str:
        return f"process {self.pid} {self.how} at {self.at:.3f}"

    def before(self, log: str) -> str:
        """What the text of a log says before it."""
        return log.partition(str(self))[0]

    @classmethod
    def first(cls, log: str) -> ChildEnd | None:
        """The earliest that the text of a log tells of: all others follow from it."""
        told = re.findall(r"^process (\d+) (was killed by \w+|ended with exit code \d+) at ([\d.]+)$", log, re.M)
        return min((cls(float(at), int(pid), how) for pid, how, at in told), key=lambda end: end.at, default=None)


def scratch_prefix(mark: str) -> str:
    """How the names of engines' scratch folders begin; `mark` tells those of a run."""
    return f"slime-engine-{mark}-" if mark else "slime-engine-"


def clear(scratch: str) -> None:
    """Remove an engine's scratch folder, and the shared memory that bears the folder's name."""
    shutil.rmtree(scratch, ignore_errors=True)
    for segment in Path("/dev/shm").glob(f"{Path(scratch).name}-*"):
        segment.unlink(missing_ok=True)
