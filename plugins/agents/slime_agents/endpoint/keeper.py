"""Runs an agent's command, and leaves nothing of it behind: `keeper.py LIBRARIES LIFELINE MEMORY_MB COMMAND`.

The processes below it are its own, orphans too. They are killed when the command ends, when the program that started
the keeper hangs up (by its death, or because the attempt is over), and when they take too much memory or are too many.
LIBRARIES is the folder of the one library that it imports: without others it starts in no time.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import NoReturn

MAX_PROCESSES = 200
TICK_S = 0.1
OUT_OF_BOUNDS = 250
"""Exit code where the command had to be killed; the last line of the output says why."""
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def main(lifeline: int, memory_mb: int, command: str) -> NoReturn:
    from guarded_workers.processes import children, resident_bytes, with_descendants  # found by LIBRARIES

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
        below = list(with_descendants(children(os.getpid())))
        if len(below) > MAX_PROCESSES:
            _refuse(f"the agent has more than {MAX_PROCESSES} processes")
        if sum(map(resident_bytes, below)) > memory_mb * 2**20:
            _refuse(f"the agent takes more than rollout.program.options.memory_mb={memory_mb} MiB")


def _refuse(why: str) -> NoReturn:
    os.write(1, f"\n{why}\n".encode())
    _end(OUT_OF_BOUNDS)


def _end(code: int) -> NoReturn:
    from guarded_workers.processes import kill_all_below

    kill_all_below()
    os._exit(code)


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
