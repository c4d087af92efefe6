"""Runs an agent's command, and leaves nothing of it behind: `keeper.py LIFELINE MEMORY_MB COMMAND`.

The processes below it are its own, orphans too. They are killed when the command ends, when the program that started
the keeper hangs up (by its death, or because the attempt is over), and when they take too much memory or are too many.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

MAX_PROCESSES = 200
TICK_S = 0.1
OUT_OF_BOUNDS = 250
"""Exit code where the command had to be killed; the last line of the output says why."""
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_PAGE = os.sysconf("SC_PAGESIZE")


def main(lifeline: int, memory_mb: int, command: str) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
    os.close(0)
    poller = select.poll()
    for descriptor in (lifeline, os.pidfd_open(child.pid)):
        poller.register(descriptor, select.POLLIN)
    while True:
        ready = dict(poller.poll(1000 * TICK_S))
        if lifeline in ready:
            _end(signal.SIGKILL)
        if ready:
            code = child.wait()
            _end(code if code >= 0 else 128 - code)
        below = list(_below(os.getpid()))
        if len(below) > MAX_PROCESSES:
            _refuse(f"the agent has more than {MAX_PROCESSES} processes")
        if sum(map(_bytes, below)) > memory_mb * 2**20:
            _refuse(f"the agent takes more than rollout.program.options.memory_mb={memory_mb} MiB")


def _refuse(why: str) -> NoReturn:
    os.write(1, f"\n{why}\n".encode())
    _end(OUT_OF_BOUNDS)


def _end(code: int) -> NoReturn:
    """Kill all below, and again what they started meanwhile, until none is left."""
    while True:
        for pid in _below(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            os._exit(code)
        time.sleep(0.001)


def _below(pid: int) -> Iterator[int]:
    """All processes below one, those that nobody has waited for included."""
    waiting = [pid]
    for parent in waiting:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except FileNotFoundError:
            continue
        for task in tasks:
            children = [int(child) for child in _read(f"/proc/{parent}/task/{task}/children").split()]
            yield from children
            waiting += children


def _bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
