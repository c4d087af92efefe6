"""Freed memory goes back to the system although what lives on lies between."""

from __future__ import annotations

import ctypes
import sys

import pytest

from slime_testing.patience import run_within

HOLES = """
import psutil, torch
from slime_megatron.train import heap
rss = psutil.Process().memory_info
freed, kept = [], []
for _ in range(1024):
    freed.append(torch.ones(2**14))
    kept.append(torch.ones(2**8))
freed.clear()
before = rss().rss
heap.release()
assert all(tensor.sum() == 2**8 for tensor in kept)
print(before - rss().rss)
"""
"""64 MiB in blocks too small for mappings of their own, each followed by a tensor that stays."""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
def test_holes_in_the_heap_go_back_to_the_system() -> None:
    """In a process of its own: one with a past has holes already that the blocks would fill."""
    given_back = run_within(60, [sys.executable, "-c", HOLES])
    assert int(given_back.stdout) > 48 * 2**20
