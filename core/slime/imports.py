"""The import of large libraries, made cheaper."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
