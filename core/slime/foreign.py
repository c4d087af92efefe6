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
NOTICE_S = 10.0
"""Seconds after which a line says for whom slime waits."""

LOOK_S = 0.5
"""Seconds between two looks at what takes its time."""

Fault = Callable[[str], SlimeError]
"""The error that names whose code it is, from what is wrong."""


Block = tuple[float, int, Fault, str]
"""Since when it runs, in which thread, the fault, and at what it is."""


class _Watch:
    """One thread for all blocks, while there are any: `slime --help` has 150, and a thread for each took a seventh of
    its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Block] = []
        self._told: list[Block] = []
        self._watches = False

    def begin(self, fault: Fault, at: str) -> Block:
        block = time.monotonic(), threading.get_ident(), fault, at
        with self._lock:
            self._running.append(block)
            if not self._watches:
                self._watches = True
                threading.Thread(target=self._look, daemon=True).start()
        return block

    def end(self, block: Block) -> None:
        with self._lock:
            self._running.remove(block)
            self._told = [told for told in self._told if told is not block]

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                if not self._running:
                    self._watches = False
                    return
                waits = [(time.monotonic() - each[0], each) for each in self._running]
                slow = [each for waited, each in waits if waited > NOTICE_S and each not in self._told]
                self._told += slow
            for each in slow:
                _say(each, NOTICE_S, f"; slime waits for it until {PATIENCE_S:g} s")
            for waited, each in waits:
                if waited > PATIENCE_S:
                    _say(each, PATIENCE_S)
                    os._exit(EXIT_ERROR)


_watch = _Watch()


def _forget() -> None:
    """A forked process has this thread's blocks and no thread that watches them."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def foreign(fault: Fault, raised: str, at: str = "to import, or to answer a hook") -> Iterator[None]:
    """Whatever the block raises is a fault, SystemExit included. If it takes too long, this process ends with a line:
    what hangs in another library cannot be interrupted. Code in C that keeps Python's lock keeps the line, too.

    Args:
        raised: what is wrong, with `{}` in place of the exception.
        at: what it takes too long for.

    Raises:
        SlimeError: the block raised something.
    """
    watch = _watch
    block = watch.begin(fault, at)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise fault(raised.replace("{}", f"{type(error).__name__}: {error}")) from error
    finally:
        watch.end(block)


def _say(block: Block, seconds: float, more: str = "") -> None:
    _, thread, fault, at = block
    if frame := sys._current_frames().get(thread):
        stands = f"it stands in {frame.f_code.co_filename}:{frame.f_lineno}"
        sys.stderr.write(f"slime: {fault(f'it takes longer than {seconds:g} s {at}; {stands}{more}')}\n")
        sys.stderr.flush()
