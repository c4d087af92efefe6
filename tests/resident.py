"""How much memory something takes, as the kernel counts it: all that is resident, pages of mapped files too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

MIB = 2**20
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 2**17
"""Tensors get pages of their own and give them back: what is counted is what is held, not how the heap is cut up."""


def growth(action: Callable[[], None]) -> int:
    """Bytes by which the resident memory of this process grows while `action` runs, at its highest."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
    libc.malloc_trim(0)  # memory freed before must not be there to hide new memory
    Path("/proc/self/clear_refs").write_text("5")  # the highest is the present
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
