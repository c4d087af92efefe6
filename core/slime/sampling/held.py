"""Others' code beside the event loop's thousands: it may not block the loop, and it ends when it is told to."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
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
    """Returns or raises what `work` does. The first cancellation is raised inside `work`; the second one closes it.
    Those by which its own time-outs work are not counted.

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


async def beside(work: Callable[[], T]) -> T:
    """Runs `work`, which blocks, in a thread of its own, and returns or raises what it does. Plugins' code, whose time
    is bounded by signals, stays in the main thread.

    Whoever is cancelled here, by Ctrl-C for instance, leaves the thread alone: its process may end without it, which
    `asyncio.to_thread` does not permit.
    """
    done = Future[T]()

    def run() -> None:
        # Nobody waits any more where it was cancelled, or the loop is closed.
        with suppress(InvalidStateError, RuntimeError):
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 because it is raised where `work` is awaited
                done.set_exception(error)
            else:
                done.set_result(result)

    threading.Thread(target=run, daemon=True, name="beside").start()
    return await asyncio.wrap_future(done)
