"""Seconds of work that a device does."""

from __future__ import annotations

import time


def now(device: str) -> float:
    """Seconds, once the device has done what it was told."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
