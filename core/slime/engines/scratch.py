"""What engines leave behind that have ended: the word of how they did, scratch folders and shared memory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

RAY_PREFIX = "slime-ray-"
"""How the names of the folders begin that hold Ray's logs and sockets."""
_SOCKET = f"/{RAY_PREFIX}12345678-12345678/ray/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store.1"
LONGEST_PLACE = 107 - len(_SOCKET)
"""Characters that are left to a folder for temporary files: Linux takes no longer path of a socket."""


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


def ray_folder(mark: str) -> Path:
    """A new folder for Ray's logs and sockets in one that is the user's alone: Ray opens its own to everybody."""
    return Path(tempfile.mkdtemp(prefix=f"{RAY_PREFIX}{mark}-", dir=_ray_place()), "ray")


def _ray_place() -> Path:
    place = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    return place if len(str(place)) <= LONGEST_PLACE else Path("/tmp")


def clear_all(mark: str) -> None:
    """`clear` after every engine of the run whose mark this is, and after its Ray."""
    for place in {Path(tempfile.gettempdir()), Path("/dev/shm"), _ray_place()}:
        for prefix in (scratch_prefix(mark), f"{RAY_PREFIX}{mark}-"):
            for left in place.glob(f"{prefix}*"):
                clear(str(left)) if left.is_dir() else left.unlink(missing_ok=True)
