"""Time limits for processes on a machine that other programs keep busy.

A limit in plain seconds fails healthy processes where others hold the cores. `Patience` leaves out the time for which a
process was ready to run and had no core; Linux counts it for every thread. A process that waits for anything else, or
that runs for ever, uses its limit up.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


class Patience:
    """A limit of wall-clock seconds, less those for which a watched process had no core.

    Of a process that is older than the limit, Linux knows only how long it waited in all. That counts once, and for no
    more than the time that has passed; from then on, what is added counts. So the limit of a hang is at most doubled.

    Args:
        limit_s: seconds from now on, or from the last `renew`.
        pids: the processes to watch, asked for when the limit is reached.
    """

    def __init__(self, limit_s: float, pids: Callable[[], Iterable[int]]) -> None:
        self._limit_s, self._pids = limit_s, pids
        self.renew()

    def renew(self) -> None:
        self._start = time.monotonic()
        self._granted_s, self._waited_s = 0.0, dict[tuple[int, str], float]()

    def is_over(self) -> bool:
        """Whether the limit has passed; costs nothing before its plain seconds have."""
        elapsed_s = time.monotonic() - self._start
        if elapsed_s <= self._limit_s + self._granted_s:
            return False
        waited_s = _seconds_without_core(self._pids())
        if not self._granted_s:
            self._granted_s, self._waited_s = min(max(waited_s.values(), default=0.0), elapsed_s), waited_s
        added_s = (seconds - self._waited_s.get(thread, 0.0) for thread, seconds in waited_s.items())
        return elapsed_s > self._limit_s + self._granted_s + max(added_s, default=0.0)

    def wait_for(self, reached: Callable[[], bool], every_s: float = 0.05) -> bool:
        """Wait until something is so or the limit has passed; returns whether it is so."""
        while not (found := reached()) and not self.is_over():
            time.sleep(every_s)
        return found


def run_within(
    limit_s: float, command: Sequence[str | Path], *, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a command whose output is captured as text, within the patience of its whole family.

    Args:
        limit_s: seconds, less those for which the command or a descendant had no core.
        check: whether an exit code that is not 0 fails, with what the command printed.
        options: of `subprocess.Popen`.

    Raises:
        subprocess.TimeoutExpired: the limit has passed; the command is killed.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(command, **pipes) as process:
        patience = Patience(limit_s, lambda: family(process.pid))
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):  # a later call loses nothing of what was printed
                    printed = process.communicate(timeout=1)
                    break
                if patience.is_over():
                    raise subprocess.TimeoutExpired(command, limit_s)
        except BaseException:  # as subprocess.run does: nothing waits for a command that nobody reads
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, *printed)
    assert not check or done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def family(pid: int) -> list[int]:
    """A process and all its descendants, as long as it runs."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def seconds_without_core(pids: Iterable[int]) -> float:
    """The longest time that a thread of these processes was ready to run and had no core, since it started.

    Processes that are gone, and machines that do not count it, count as 0.
    """
    return max(_seconds_without_core(pids).values(), default=0.0)


def _seconds_without_core(pids: Iterable[int]) -> dict[tuple[int, str], float]:
    return {(pid, thread): _waited_s(pid, thread) for pid in pids for thread in _threads(pid)}


def _threads(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def _waited_s(pid: int, thread: str) -> float:
    with suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:  # on a core, in line for one: ns
        return int(file.read().split()[1]) / 1e9
    return 0.0
