"""Processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: process id of the parent, which may have ended before this is called: then the process ends here.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
