"""Processes that do not outlive the one that started them, however that ends.

Two ways, because neither does for all. The kernel's needs no thread and no lock of Python's, so it ends a process that
is stuck in C as well; but it acts as soon as the *thread* that started the process ends, and at once. The other looks
who the parent is, again and again: right for servers, which a thread of a Ray actor starts, and which have workers and
a scratch folder. A pipe would do for neither: forked siblings keep it open.

What is left after that is the business of `slime-cluster` (all of a run, from outside) and of
`guarded_workers.guard` (all that a sample has started).
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

PARENT_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process id of the parent, which may have ended before this is called: then the process ends here.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_group_with_parent(parent: int, clear: Callable[[], object]) -> None:
    """Kill this process group soon after its parent has ended, whichever thread of that started it.

    Args:
        parent: process id, from the parent itself: it may have ended before this is called.
        clear: called before that.
    """
    threading.Thread(target=_watch, args=(parent, clear), daemon=True).start()


def _watch(parent: int, clear: Callable[[], object]) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    try:
        clear()
    finally:
        os.killpg(0, signal.SIGKILL)
