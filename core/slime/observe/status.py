"""`status.json`: the state of a run, when it began, and by which slime."""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import slime
from slime import files
from slime.errors import SlimeError
from slime.events import Ended, Event
from slime.run_dir import LOCK, RunDir

STATUS = "status.json"
RUNNING, KILLED = "running", "killed"


@dataclass(frozen=True)
class Status:
    """The status of one run."""

    state: str = ""  # a `slime.types.RunStatus`, `running`, `killed` (no process runs it); empty: not known
    said: str = ""  # the line that it failed with
    started: float = 0.0  # Unix seconds, of its first session; 0: not known
    sessions: int = 0  # how often it was started
    host: str = ""  # that the driver ran on
    slime: str = ""  # version
    commit: str = ""  # of slime's checkout; empty if it is installed otherwise


class StatusFile:
    """Says `running` from now on, and how the run ended once it has; a subscriber of its events."""

    def __init__(self, run: RunDir) -> None:
        before = read(run.path)
        status = Status(RUNNING, "", before.started or time.time(), before.sessions + 1)
        self._run = run
        self._status = replace(status, host=socket.gethostname(), slime=slime.__version__, commit=commit())
        _write(run, self._status)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Ended):
            error = event.error
            said = str(error) if isinstance(error, SlimeError) else f"{type(error).__name__}: {error}"
            ended = replace(self._status, state=event.status, said=said if event.status == "failed" else "")
            # The run says what stopped it, which may be the disk.
            with suppress(OSError, SlimeError) if error else nullcontext():
                self._run.require_intact()
                _write(self._run, ended)


def _write(run: RunDir, status: Status) -> None:
    with files.disk_errors(run.path):
        files.write_atomic(run.path / STATUS, json.dumps(asdict(status), indent=1).encode() + b"\n")


def read(folder: Path) -> Status:
    """The status of the run directory `folder`; without such a file nothing is known."""
    status = _written(folder)
    while status.state == RUNNING and not _is_held(folder / LOCK):
        if (now := _written(folder)) == status:  # else it has ended since, which it says before it lets go
            return replace(status, state=KILLED)
        status = now
    return status


def _written(folder: Path) -> Status:
    try:
        return Status(**json.loads((folder / STATUS).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return Status()


def _is_held(lock: Path) -> bool:
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def commit() -> str:
    """The commit of the checkout that this slime was imported from, with `-dirty` where files differ from it."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", Path(__file__).name], check=True, capture_output=True)
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        found = subprocess.run(describe, check=True, capture_output=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError):  # no git; or installed into a folder of another project
        return ""
    return found.stdout.strip()
