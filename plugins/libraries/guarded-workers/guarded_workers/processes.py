"""Processes below this one, as /proc has them: found, measured and killed. Imports nothing that takes long."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

ZOMBIE, STOPPED = "Z", "T"
"""Letters of `state`."""
_CHUNK, _PAGE = 1 << 16, os.sysconf("SC_PAGESIZE")


def kill_all_below() -> None:
    """Kill children until none is left; orphans of the killed become children of this process."""
    while True:
        kill(with_descendants(children(os.getpid())))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):  # gone, or of another user by a set-user-ID program
            os.kill(pid, signal.SIGKILL)


def with_descendants(pids: list[int]) -> Iterator[int]:
    """`pids` and all processes below them."""
    waiting = list(pids)
    for pid in waiting:
        yield pid
        waiting += children(pid)


def children(pid: int) -> list[int]:
    """Ids of a process's children, dead ones it has not waited for included."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return []
    return [int(child) for task in tasks for child in _read(f"/proc/{pid}/task/{task}/children").split()]


def identity(pid: int) -> tuple[int, str]:
    """The id and the start time, as ids come again; the latter is empty once the process is gone."""
    return pid, _stat(pid)[19]


def state(pid: int) -> str:
    """The letter for what a process does; empty if it is gone."""
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on (the second, a name, may hold blanks); empty for none such."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split() or [""] * 50


def resident_bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def exact_bytes(pids: Iterable[int], of_files: int) -> int:
    """Bytes of processes and of the files in their /dev/shm; a page that several of them have counts once."""
    shares = [_shares_of_bytes(pid) for pid in pids]
    return sum(share for share, _ in shares) + max(0, of_files - sum(shared for _, shared in shares))


def _shares_of_bytes(pid: int) -> tuple[int, int]:
    """Bytes, each page shared out among the processes that have it; and those of shared memory among them."""
    lines = (line.split() for line in _read(f"/proc/{pid}/smaps_rollup").splitlines()[1:])
    sizes = {name: int(size) * 1024 for name, size, *_ in lines}
    # There is none of a process of another user (by a set-user-ID program), nor of one that is gone.
    return sizes.get("Pss:") or resident_bytes(pid), sizes.get("Pss_Shmem:", 0)


def _read(path: str) -> str:
    """A file of /proc; empty if its process is gone, or another user's. (Python's `open` takes three times as long.)"""
    try:
        file = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    try:
        return b"".join(iter(lambda: os.read(file, _CHUNK), b"")).decode(errors="replace")
    except ProcessLookupError:
        return ""
    finally:
        os.close(file)
