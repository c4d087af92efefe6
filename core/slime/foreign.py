"""Code of others that slime imports and calls: it may neither end slime nor hold it for ever."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slime.errors import EXIT_ERROR, SlimeError

PATIENCE_S = 120.0
"""Seconds it may take: a disk of the network may be slow."""

LOOK_S = 0.5
"""Seconds between two looks at what takes its time."""

Fault = Callable[[str], SlimeError]
"""The error that names whose code it is, from what is wrong."""


class _Watch:
    """One thread for all blocks, while there are any: `slime --help` has 150, and a thread for each took a seventh of
    its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[tuple[float, int, Fault]] = []  # since when, in which thread
        self._watches = False

    def begin(self, fault: Fault) -> tuple[float, int, Fault]:
        block = time.monotonic(), threading.get_ident(), fault
        with self._lock:
            self._running.append(block)
            if not self._watches:
                self._watches = True
                threading.Thread(target=self._look, daemon=True).start()
        return block

    def end(self, block: tuple[float, int, Fault]) -> None:
        with self._lock:
            self._running.remove(block)

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                if not self._running:
                    self._watches = False
                    return
                late = [each for each in self._running if time.monotonic() - each[0] > PATIENCE_S]
            for _, thread, fault in late:
                _end(thread, fault)


_watch = _Watch()


def _forget() -> None:
    """A forked process has this thread's blocks and no thread that watches them."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def foreign(fault: Fault, raised: str) -> Iterator[None]:
    """Whatever the block raises is a fault, SystemExit included. If it takes too long, this process ends with a line:
    what hangs in another library cannot be interrupted.

    Args:
        raised: what is wrong, with `{}` in place of the exception.

    Raises:
        SlimeError: the block raised something.
    """
    watch = _watch
    block = watch.begin(fault)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise fault(raised.replace("{}", f"{type(error).__name__}: {error}")) from error
    finally:
        watch.end(block)


def _end(thread: int, fault: Fault) -> None:
    frame = sys._current_frames()[thread]
    stands = f"it stands in {frame.f_code.co_filename}:{frame.f_lineno}"
    error = fault(f"it takes longer than {PATIENCE_S:g} s to import, or to answer a hook; {stands}")
    sys.stderr.write(f"slime: {error}\n")
    sys.stderr.flush()
    os._exit(EXIT_ERROR)
