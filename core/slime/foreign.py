"""Code of others that slime imports and calls: it may neither end slime nor hold it for ever."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from slime.errors import EXIT_ERROR, SlimeError

PATIENCE_S = 120.0
"""Seconds it may take: a disk of the network may be slow."""
NOTICE_S = 10.0
"""Seconds after which a line says for whom slime waits."""
LOOK_S = 0.5
"""Seconds between two looks at what takes its time."""
Fault = Callable[[str], SlimeError]
"""The error that names whose code it is, from what is wrong."""


@dataclass(eq=False)
class _Block:
    fault: Fault
    at: str
    thread: int = field(default_factory=threading.get_ident)
    since: float = field(default_factory=time.monotonic)
    is_told: bool = False

    def say(self, seconds: float, more: str = "") -> None:
        if frame := sys._current_frames().get(self.thread):
            at = f"{self.at}; it stands in {frame.f_code.co_filename}:{frame.f_lineno}"
            sys.stderr.write(f"slime: {self.fault(f'it takes longer than {seconds:g} s {at}{more}')}\n")
            sys.stderr.flush()


class _Watch:
    """One thread for all blocks, while there are any: `slime --help` has 150, and a thread for each took a seventh of
    its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[_Block] = []
        self._watches = False

    def begin(self, block: _Block) -> None:
        with self._lock:
            self._running.append(block)
            if not self._watches:
                self._watches = True
                threading.Thread(target=self._look, daemon=True).start()

    def end(self, block: _Block) -> None:
        with self._lock:
            self._running.remove(block)

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                running = tuple(self._running)
                self._watches = bool(running)
            if not running:
                return
            for block in running:
                waited = time.monotonic() - block.since
                if waited > NOTICE_S and not block.is_told:
                    block.is_told = True
                    block.say(NOTICE_S, f"; slime waits for it until {PATIENCE_S:g} s")
                if waited > PATIENCE_S:
                    block.say(PATIENCE_S)
                    os._exit(EXIT_ERROR)


_watch = _Watch()


def _forget() -> None:
    """A forked process has this thread's blocks and no thread that watches them."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def foreign(fault: Fault, raised: str, at: str = "to import, or to answer a hook") -> Iterator[None]:
    """Raise a fault for whatever the block raises, SystemExit included. If it takes too long, this process ends with a
    line: what hangs in another library cannot be interrupted. Code in C that keeps Python's lock keeps the line, too.

    Args:
        raised: what is wrong, with `{}` in place of the exception.
        at: what it takes too long for.
    """
    watch, block = _watch, _Block(fault, at)
    watch.begin(block)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise fault(raised.replace("{}", f"{type(error).__name__}: {error}")) from error
    finally:
        watch.end(block)
