"""Processes that do not outlive the one that started them, however that ends.

The kernel's way needs no thread and no lock of Python's, so it ends a process that is stuck in C as well; but it acts
as soon as the *thread* that started the process ends. The other way polls who the parent is: for servers, which a
thread of a Ray actor starts, and which have workers and a scratch folder. A pipe does not do: forked siblings keep it
open.
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
    """Have the kernel kill this process when the thread that started it ends; at once if the process `parent` has ended
    already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_group_with_parent(parent: int, clear: Callable[[], object]) -> None:
    """Call `clear` and kill this process group soon after its parent has ended, whichever thread of that started it.
    The process id comes from the parent itself, which may have ended before this is called."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        try:
            clear()
        finally:
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
