"""The reaper: nothing outlives the driver on this host, however the driver ends.

Most processes notice by themselves, but after a `kill -9` Ray's agents keep talking to a dead server for minutes. So a
small process remembers the driver's processes, waits for its end, then kills those that are left and removes what
engines would have removed. It knows them as the driver's descendants and by a variable in their environment: a process
that was started in the last moment, by one that has ended since, is nobody's descendant any more.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from slime_cluster.ray.folders import PREFIX, clear_all
from slime_cluster.ray.signals import signals_postponed

LOOK_S = 1.0
"""Seconds between looks at the driver's descendants: their orphans can no longer be told once it is gone."""
GRACE_S = 3.0
"""Seconds in which they may end by themselves."""
POLL_S = 0.05
_MARK = "SLIME_RUN_MARK"
"""Environment variable that what is started in the block inherits."""
UNKNOWN = "?"
"""Note where the cause of an end would not be known: then the reaper says so."""
_END = b"\0"
"""The driver's word at the end of the block; where it dies, the kernel closes its end without one."""


class Reaper:
    """The process that outlives this one."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def note(self, words: str) -> None:
        """Have it print `words` if this process vanishes: for `UNKNOWN`, as at first, its own; for none, nothing."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{words}\n".encode())
            self._process.stdin.flush()


@contextlib.contextmanager
def reaped(mark: str) -> Iterator[Reaper]:
    """Have all that this process starts in the block gone soon after the block or the process ends. `mark` is the
    run's, in the names of its engines' scratch folders and shared memory, too."""
    before = [str(child.pid) for child in _descendants(os.getpid())]
    command = [sys.executable, "-m", "slime_cluster.ray.reaper", mark, str(os.getpid()), *before]
    with contextlib.ExitStack() as stack:
        with signals_postponed():  # until it will be told of the end: it takes silence for a death
            reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            stack.callback(reaper.communicate, _END)
        os.environ[_MARK] = mark
        stack.callback(os.environ.pop, _MARK)
        yield Reaper(reaper)


def main(mark: str, driver: int, *before: int) -> None:
    """Watch until standard input ends, then kill what is left of the family, and remove what it has left.

    Args:
        driver: process id.
        before: ids of those that it had started before the block. They are its own business, unless it is gone.
    """
    family: set[psutil.Process] = set()
    told = b""
    while not told.endswith(_END):
        if select.select([sys.stdin], [], [], LOOK_S)[0]:
            if not (words := os.read(sys.stdin.fileno(), 1 << 16)):
                break
            told += words
        else:
            family = {process for process in family if process.is_running()} | _descendants(driver)
    if is_orderly := told.endswith(_END):
        family = {process for process in family if process.pid not in before}
    for _ in range(2):  # one that ends in the first round may have started another meanwhile
        alive = wait_until_gone(family | _marked(mark), GRACE_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until_gone(alive, GRACE_S)
    clear_all(mark)
    if not is_orderly:
        _tell(driver, told.decode(errors="replace"))


def _tell(driver: int, notes: str) -> None:
    """Print the last words of a driver that had no time for any."""
    words = notes.splitlines()[-1] if notes else UNKNOWN
    if words == UNKNOWN:
        gone = f"the run's process (pid {driver}) ended without a word: it was killed, or Ray ended it"
        words = f"slime: {gone}. Start the same command again to resume."
    if words:
        sys.stderr.write(f"{words}\n")


def wait_until_gone(family: set[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Wait for processes to end, at most `timeout_s` seconds; returns those that are still alive."""
    deadline = time.monotonic() + timeout_s
    while (family := {process for process in family if _is_alive(process)}) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return family


def _is_alive(process: psutil.Process) -> bool:
    """Zombies count as dead: a living driver may not have reaped them yet."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _marked(mark: str) -> set[psutil.Process]:
    """Processes that were started in the block, whatever their parent is now. Ray's agents write their names over their
    environment, and are known by their logs."""
    found, logs = set(), f"/{PREFIX}{mark}-"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended, or is another user's
            is_agent = process.name().startswith("ray::")
            if process.environ().get(_MARK) == mark or (
                is_agent and any(logs in file.path for file in process.open_files())
            ):
                found.add(process)
    return found


def _descendants(driver: int) -> set[psutil.Process]:
    try:
        return {child for child in psutil.Process(driver).children(recursive=True) if child.pid != os.getpid()}
    except psutil.NoSuchProcess:  # it ends just now, and standard input with it
        return set()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
