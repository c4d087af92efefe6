"""Takes care that nothing outlives the driver on this host, however the driver ends.

Most processes notice by themselves; after a `kill -9` Ray's agents, for one, keep talking to a dead server for minutes.
So a small process waits for the driver's end and then kills what still carries the run's mark in its environment,
which every process inherits from the one that started it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import psutil

MARK = "SLIME_DRIVER"
GRACE_S = 3.0
"""Seconds the marked processes get to end by themselves."""


@contextlib.contextmanager
def reaped() -> Iterator[None]:
    """Mark everything this process starts in the block, and have it gone soon after the block or the process ends."""
    mark = os.environ[MARK] = f"{os.getpid()}-{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "slime.cluster.reaper", mark]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        assert reaper.stdin
        reaper.stdin.close()  # as the kernel does when this process dies
        reaper.wait()
        del os.environ[MARK]


def marked(mark: str) -> list[psutil.Process]:
    """Every other living process of this host that carries `mark`, the driver and this process left out."""
    own = (os.getpid(), int(mark.split("-")[0]))
    return [process for process in psutil.process_iter() if process.pid not in own and _mark_of(process) == mark]


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):  # gone, somebody else's, or ending
        return None


def main(mark: str) -> None:
    sys.stdin.read()  # returns when the driver has gone
    deadline = time.monotonic() + GRACE_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    while left:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)
        left = marked(mark)


if __name__ == "__main__":
    main(sys.argv[1])
