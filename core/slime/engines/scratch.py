"""The place where processes of an engine meet, and what those leave behind that have ended: the word of how they did,
scratch folders and shared memory."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slime.net import LOOPBACK, reserved_port

NUM_FOLLOWING = 6
"""Ports that data-parallel attention counts from the one it is told (SGLang's `PortArgs.init_new`)."""


def how_ended(code: int) -> str:
    """The meaning of a process's exit code, negative after a signal: `was killed by SIGKILL`."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@dataclass(frozen=True)
class ChildEnd:
    """A line of an engine's log: how one of its processes ended, by a signal or by itself, and when the one above it
    saw that, in seconds since the epoch."""

    at: float
    pid: int
    how: str

    def __str__(self) -> str:
        return f"process {self.pid} {self.how} at {self.at:.3f}"

    def before(self, log: str) -> str:
        """The text of a log before it."""
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


@dataclass(frozen=True)
class Rendezvous:
    """The place where all processes of an engine meet: `host:port` of the first, SGLang's `dist_init_addr`; torch's
    ranks in a file instead, empty where they have none in common."""

    address: str
    file: str = ""


@contextmanager
def open_rendezvous(host: str, mark: str) -> Iterator[Rendezvous]:
    """At the address `host` of the first process; its ports are nobody else's while the context lasts. On one host
    ranks meet in a file, whose folder's name has the run's `mark`: torch's store would listen on every interface, and
    ask nobody who he is."""
    with reserved_port(host, NUM_FOLLOWING) as port:
        address = f"{host}:{port}"
        if host != LOOPBACK:
            yield Rendezvous(address)
            return
        folder = tempfile.mkdtemp(prefix=scratch_prefix(mark))
        try:
            yield Rendezvous(address, f"{folder}/ranks")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
