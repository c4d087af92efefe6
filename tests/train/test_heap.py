"""Freed memory goes back to the system although what lives on lies between."""

from __future__ import annotations

import ctypes

import psutil
import pytest
import torch

from slime.train import heap


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
def test_holes_in_the_heap_go_back_to_the_system() -> None:
    """64 MiB in blocks too small for mappings of their own, each followed by a tensor that stays."""
    rss = psutil.Process().memory_info
    freed, kept = [], []
    for _ in range(1024):
        freed.append(torch.ones(2**14))
        kept.append(torch.ones(2**8))
    freed.clear()
    before = rss().rss
    heap.release()
    assert before - rss().rss > 48 * 2**20
    assert all(tensor.sum() == 2**8 for tensor in kept)
