"""Waiting for what processes of this machine do, on however busy a machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from slime_testing.patience import Patience, family


def until(
    reached: Callable[[], Any],
    limit_s: float = 30.0,
    pids: Callable[[], Iterable[int]] = lambda: family(os.getpid()),
    *,
    told: Callable[[], object] = lambda: "",
) -> None:
    """Wait until something is so.

    Args:
        limit_s: seconds, less those for which a process of `pids` had no core.
        pids: those that are to do it; this one and all that it has started, unless given.
        told: what stands in the error.

    Raises:
        AssertionError: it is not so within the limit.
    """
    assert Patience(limit_s, pids).wait_for(lambda: bool(reached())), told()
