"""Somebody's coroutine in the event loop of thousands: it may not block the loop, and it ends when it is told to."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

from slime.time_limit import within

T = TypeVar("T")
GRACE_S = 10.0
"""Seconds for what a program does when it is cancelled, and for what it does between two awaits."""


class Suspended(BaseException):
    """The engines were told to abort: the attempt goes on in a later step. No program catches it by mistake."""


@types.coroutine
def held(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """What `work` returns or raises. The first cancellation is raised inside `work`; the second one closes it. Those by
    which its own time-outs work are not counted.

    Raises:
        DidNotReturnError: it did not await anything for `GRACE_S`.
    """
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            with within(GRACE_S):
                waits_for = step(value)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            step, value = work.send, (yield waits_for)
        except asyncio.CancelledError as error:
            if _is_second(error):
                with suppress(RuntimeError), within(GRACE_S):  # it may ignore that, too
                    work.close()
                raise
            step, value = work.throw, error
        except BaseException as error:  # noqa: BLE001 because whatever it awaits may raise is its own to handle
            step, value = work.throw, error


def _is_second(error: asyncio.CancelledError) -> bool:
    """Whether the task was cancelled before. `asyncio.timeout` takes its cancellation back; anyio repeats its own."""
    task = asyncio.current_task()
    assert task, "a program runs in a task"
    return task.cancelling() > 1 and "cancel scope" not in str(error)


class TimeLimit:
    """Cancels the current task when it takes too long of its own, and again until it ends.

    Args:
        seconds: that may pass while it is not stopped.
    """

    def __init__(self, seconds: float) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._seconds = seconds
        self.has_passed = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Count from now on."""
        if not self.has_passed:
            self._timer = self._loop.call_later(self._seconds, self._pass)

    def stop(self) -> None:
        """Count no more."""
        if self._timer:
            self._timer.cancel()

    def _pass(self) -> None:
        assert self._task, "a program runs in a task"
        self.has_passed = True
        self._task.cancel()
        self._timer = self._loop.call_later(GRACE_S, self._pass)
