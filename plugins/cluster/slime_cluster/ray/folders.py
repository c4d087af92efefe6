"""A run's own folder for Ray's logs and sockets, and the removal of a run's folders."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from slime.engines.scratch import clear, scratch_prefix

PREFIX = "slime-ray-"
_SOCKET = f"/{PREFIX}12345678-12345678/ray/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store.1"
LONGEST_PLACE = 107 - len(_SOCKET)
"""Characters for the folder of temporary files: Linux limits the path of a socket."""

_AGENT = re.compile(r"one Ray agent failed, agent_name = (\w+)")


def ray_folder(mark: str) -> Path:
    """A new folder in one that is the user's alone: Ray opens its own to everybody."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{mark}-", dir=_place()), "ray")


def _place() -> Path:
    place = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    return place if len(str(place)) <= LONGEST_PLACE else Path("/tmp")


def agent_behind(logs: Path) -> str:
    """Words behind a raylet's end that it is for the end of one of Ray's agents, by the raylet's log; or empty. How
    that has ended, Ray does not know."""
    log = logs / "raylet.err"
    found = _AGENT.search(log.read_text(errors="replace")) if log.is_file() else None
    return f", because its {found[1]} has ended (for memory: see dmesg)" if found else ""


def agent_behind_all(mark: str) -> str:
    """The same of the Ray on this host of the run with this mark."""
    return next(filter(None, map(agent_behind, _place().glob(f"{PREFIX}{mark}-*/ray/session_*/logs"))), "")


def clear_all(mark: str) -> None:
    """Remove what engines and Ray of the run with this mark have left."""
    for place in {Path(tempfile.gettempdir()), Path("/dev/shm"), _place()}:
        for prefix in (scratch_prefix(mark), f"{PREFIX}{mark}-"):
            for left in place.glob(f"{prefix}*"):
                clear(str(left)) if left.is_dir() else left.unlink(missing_ok=True)
