"""A bound on the time that a plugin's code may take in the driver."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar


class DidNotReturnError(Exception):
    """A plugin's code took too long; says how long, and the line that it was in."""


FAILURES = (Exception, SystemExit)
"""Exceptions of a plugin's code, or of the network it uses, that do not end the run."""


def failure(error: BaseException) -> str:
    """One of `FAILURES` in the words of a log line: `ValueError: no such table`."""
    if isinstance(error, DidNotReturnError):
        return f"it {error}"
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")


class _TimeIsUp(BaseException):
    """Raised in the midst of somebody's code, which must not catch it: no `Exception`. Says where."""


class Handler:
    """A handler of a signal, set for a block of the main thread; in a block of the same one it is set already."""

    known: ClassVar[list[Handler]] = []

    def __init__(self, number: signal.Signals, handle: Callable[[int, FrameType | None], None]) -> None:
        self._number, self._handle = number, handle
        self._num_blocks = 0
        self._before: Any = None
        self.known.append(self)

    def __enter__(self) -> None:
        if not self._num_blocks:
            self._before = signal.signal(self._number, self._handle)
        self._num_blocks += 1

    def __exit__(self, *_: object) -> None:
        self._num_blocks -= 1
        if not self._num_blocks:
            signal.signal(self._number, self._before)


def _ring(_: int, frame: FrameType | None) -> None:
    place = f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name})" if frame else ""
    raise _TimeIsUp(place)


_RINGS = Handler(signal.SIGALRM, _ring)


@contextmanager
def often() -> Iterator[None]:
    """Context in which bounds are set often: their handlers stay in place, because to set one takes longer than the
    rest. Other threads than the main one have none."""
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            stack.callback(signal.setitimer, signal.ITIMER_REAL, *signal.setitimer(signal.ITIMER_REAL, 0))
            for handler in Handler.known:
                stack.enter_context(handler)
        yield


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """End the block once it has taken so long, whatever Python code it is in, sleeping or waiting for a lock too.

    Code in C that does not come back to Python is not ended. Another timer pauses meanwhile. Outside of the main thread
    there is no bound, because Python handles signals there alone.

    Raises:
        DidNotReturnError: it was ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with _RINGS:
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeIsUp as end:  # also where the time is up as the block ends
        raise DidNotReturnError(f"did not return within {seconds:g} s{end}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
