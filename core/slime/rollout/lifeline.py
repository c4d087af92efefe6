"""Servers that end when the process that started them ends."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time

PARENT_POLL_S = 0.2


def die_with_parent(scratch: str = "") -> None:
    """Kill this process group as soon as the parent is gone, however it went; remove the folder `scratch` first.

    Polling the parent's id holds in every case: a pipe would stay open in forked siblings, and PR_SET_PDEATHSIG
    already fires when the *thread* that started us ends, which in a Ray actor or a thread pool is no death at all.
    """
    threading.Thread(target=_watch_parent, args=(os.getppid(), scratch), daemon=True).start()


def _watch_parent(parent: int, scratch: str) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
