"""Host memory that stays for copies of the device, and what this process has held at most, as Linux counts it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from mmap import PAGESIZE
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slime.errors import SlimeError

ALIGN = 512
"""Bytes: full-speed copies start at such borders."""


def reset_peak() -> None:
    """What is held now becomes the peak; where the kernel does not offer that, it stays the one since the start."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): "reset the peak resident set size"


def peak() -> int:
    """Bytes since `reset_peak`, page-locked memory and pages of mapped files included."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


class HostMemory:
    """One block of host memory.

    Pages that are new to a process cost ten times as much as the copy into them, and more on some hosts; so the block
    stays, and it is numpy's, which asks for huge pages.

    Args:
        locked_for: what takes it, for a CUDA device, in the error of a host that cannot lock as many pages; empty: none
            is locked. It is done by hand: torch's own pinned allocator rounds every request up to a power of two, which
            can double tens of gigabytes.
        todo: what to do then.
    """

    def __init__(self, locked_for: str = "", todo: str = "") -> None:
        self._locked_for, self._todo = locked_for, todo
        self._memory = np.empty(0, np.uint8)

    def blocks(self, sizes: Sequence[int]) -> list[Tensor]:
        """[size] uint8 for each of `sizes`, side by side, as `of_size`. Each has a storage of its own: torch's writer
        of files copies once more what is a part of one."""
        ends = [*accumulate((-(-size // ALIGN) * ALIGN for size in sizes), initial=0)]
        memory = self.of_size(ends[-1]).numpy()
        return [torch.from_numpy(memory[start : start + size]) for start, size in zip(ends, sizes, strict=False)]

    def of_size(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8; the same memory every time, unless it has to grow, which loses what it held.

        Raises:
            SlimeError: it cannot be locked.
        """
        if len(self._memory) < num_bytes:
            if self._locked_for and len(self._memory):
                self._cuda("cudaHostUnregister", self._memory.ctypes.data)
            self._memory = np.empty(0, np.uint8)  # gone before its successor comes
            self._memory = np.empty(num_bytes + PAGESIZE, np.uint8)
            self._memory = self._memory[-self._memory.ctypes.data % PAGESIZE :][:num_bytes]
            if self._locked_for:
                self._cuda("cudaHostRegister", self._memory.ctypes.data, num_bytes, 0)
        return torch.from_numpy(self._memory[:num_bytes])

    def _cuda(self, function: str, *args: int) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if status := int(getattr(cudart, function)(*args)):
            raise SlimeError(f"{function} failed with CUDA error {status}", where=self._locked_for, todo=self._todo)
