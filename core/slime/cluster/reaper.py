"""Takes care that nothing outlives the driver on this host, however the driver ends.

Most processes notice by themselves; after a `kill -9` Ray's agents, for one, keep talking to a dead server for minutes.
So a small process remembers whom the driver has started, waits for the driver's end and then kills who is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator

import psutil

LOOK_S = 1.0
"""How often the driver's descendants are looked up; the orphans among them can no longer be told once it is gone."""
GRACE_S = 3.0
"""Seconds they get to end by themselves."""


@contextlib.contextmanager
def reaped() -> Iterator[None]:
    """Have all that this process starts in the block gone soon after the block or the process ends."""
    command = [sys.executable, "-m", "slime.cluster.reaper", str(os.getpid())]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        assert reaper.stdin
        reaper.stdin.close()  # as the kernel does when this process dies
        reaper.wait()


def main(driver: int) -> None:
    """Watch until standard input ends, then kill what is left of the family."""
    family: set[psutil.Process] = set()
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        family = {process for process in family if process.is_running()} | _descendants(driver)
    _, left = psutil.wait_procs(family, timeout=GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=GRACE_S)


def _descendants(driver: int) -> set[psutil.Process]:
    try:
        return {child for child in psutil.Process(driver).children(recursive=True) if child.pid != os.getpid()}
    except psutil.NoSuchProcess:  # it ends just now, and standard input with it
        return set()


if __name__ == "__main__":
    main(int(sys.argv[1]))
