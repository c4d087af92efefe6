"""Imports: of large libraries, made cheaper, and of a single file."""

from __future__ import annotations

import _thread
import atexit
import gc
import importlib.util
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

HELD_S = 5.0
"""Seconds after an interrupt until it ends an import too: a file may never come to its end."""


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Context that delays an interrupt to its end, or to a second one: torch's libraries, which call Python while they
    are loaded, abort the process where that raises, or crash at its end. Nothing happens in other threads than the main
    one, nor where interrupts are not Python's own."""
    main = threading.main_thread().ident or 0
    if threading.get_ident() != main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came: list[int] = []
    over: list[bool] = []

    def hold(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        came.append(number)
        _thread.start_new_thread(again, ())  # without the locks of `threading`, which this may have interrupted

    def again() -> None:
        time.sleep(HELD_S)
        if not over:
            signal.pthread_kill(main, signal.SIGINT)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        over.append(True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


@contextmanager
def importing() -> Iterator[None]:
    """Context of imports that take seconds, with interrupts held and without collections of garbage among a million new
    objects, which is a quarter of the time of SGLang's. No later collection walks through these objects, and a forked
    process shares their memory. Where collections are off already, they stay so."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with interrupts_held():
            yield
        if collects:
            gc.freeze()
            atexit.register(gc.unfreeze)  # or Triton's library tells, as the process ends, that all of it was leaked
    finally:
        if collects:
            gc.enable()


def collect_rarely() -> None:
    """Collect garbage after 500,000 new objects, not 700: live ones of thousands of attempts cost up to a sixth of the
    driver's time, a tenth after 50,000. Not for a process whose garbage may hold tensors."""
    gc.set_threshold(500_000)


@contextmanager
def absent(name: str, stand_in: ModuleType | None = None) -> Iterator[None]:
    """Context in which libraries that can do without a module do without it, or get another one that stands in for it,
    unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = stand_in  # type: ignore[assignment]  # None: to Python, a module that is not there
    try:
        yield
    finally:
        del sys.modules[name]


def import_file(file: Path, name: str, *, in_folder: bool = False) -> ModuleType:
    """The module of a Python file, run again at every call. It is in `sys.modules` under `name`, unlike that of any
    installed module, so that its objects can be pickled. With `in_folder` its relative imports find files beside it."""
    places = [str(file.parent)] if in_folder else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    assert spec is not None and spec.loader is not None, f"{file} is not a Python file"  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with interrupts_held():
        spec.loader.exec_module(module)
    return module
