"""Signals, postponed where they must not come."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def signals_postponed() -> Iterator[list[int]]:
    """SIGINT and SIGTERM that come in the block, which are yielded, take effect after it."""
    came = list[int]()
    if threading.current_thread() is not threading.main_thread():  # which alone has handlers
        yield came
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for signalled in came:
            signal.raise_signal(signalled)
