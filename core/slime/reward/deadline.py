"""How long a reward may still take, for one that would rather end by itself than be ended without a value."""

from __future__ import annotations

import math
import time

_ends = math.inf


def begin(timeout_s: float) -> None:
    """In a worker, before it scores."""
    global _ends
    _ends = time.monotonic() + timeout_s


def seconds_left() -> float:
    """For a reward, while it scores: seconds by the clock until `reward.timeout_s` is over, below 0 behind it; infinite
    where nothing bounds it."""
    return _ends - time.monotonic()
