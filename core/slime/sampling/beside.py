"""Work that blocks, in a thread of its own, while the event loop of the main thread turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def beside(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Plugins' code, whose time is bounded by signals, stays in the main thread.

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
