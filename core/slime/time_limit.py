"""A bound on the time that a plugin's code may take in the driver."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class DidNotReturnError(Exception):
    """A plugin's code took too long; says how long, and the line that it was in."""


FAILURES = (Exception, SystemExit)
"""What a plugin's code, or the network behind it, may raise without ending the run."""


def failure(error: BaseException) -> str:
    """One of `FAILURES` in the words of a log line: `ValueError: no such table`."""
    if isinstance(error, DidNotReturnError):
        return f"it {error}"
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")


class _TimeIsUp(BaseException):
    """Raised in the midst of somebody's code, which must not catch it: no `Exception`."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """End the block once it has taken so long, whatever Python code it is in, sleeping or waiting for a lock too.

    Code in C that does not come back to Python is not ended. Outside of the main thread there is no bound, because
    Python handles signals there alone.

    Raises:
        DidNotReturnError: it was ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    place = ""

    def ring(_: int, frame: FrameType | None) -> None:
        nonlocal place
        if frame:
            place = f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name})"
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TimeIsUp:
        raise DidNotReturnError(f"did not return within {seconds:g} s{place}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
