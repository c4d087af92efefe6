"""Imports: of large libraries, made cheaper, and of a single file."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def importing() -> Iterator[None]:
    """Around imports that take seconds: keeps Python from looking for garbage among a million new objects, which is a
    quarter of the time of SGLang's. No later collection walks through what there was at the end of the block, and a
    forked process shares the memory of it. Where collections are off already, nothing happens."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
        atexit.register(gc.unfreeze)  # or Triton's library tells, as the process ends, that all of it was leaked
    finally:
        gc.enable()


def collect_rarely() -> None:
    """Look for garbage after 500,000 new objects, not 700: thousands of attempts make many that live, and looking
    through them takes up to a sixth of the driver's time, a tenth after 50,000. Not for a process whose garbage may
    hold tensors."""
    gc.set_threshold(500_000)


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Around imports of libraries that take a package where it is installed, and do without it elsewhere: here they do
    without, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # to Python, a module that is not there
    try:
        yield
    finally:
        del sys.modules[name]


def import_file(file: Path, name: str) -> ModuleType:
    """The module of a Python file, run again at every call. It stands in `sys.modules` under `name`, so that what it
    defines can be pickled. `name` should be unlike that of any installed module."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, f"{file} is not a Python file"  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
