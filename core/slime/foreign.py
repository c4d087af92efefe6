"""Code of others that slime imports and calls: it may neither end slime nor hold it for ever."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slime.errors import EXIT_ERROR, SlimeError

PATIENCE_S = 120.0
"""Seconds it may take: a disk of the network may be slow."""

Fault = Callable[[str], SlimeError]
"""The error that names whose code it is, from what is wrong."""


@contextmanager
def foreign(fault: Fault, raised: str) -> Iterator[None]:
    """Whatever the block raises is a fault, SystemExit included. If it takes too long, this process ends with a line:
    what hangs in another library cannot be interrupted.

    Args:
        raised: what is wrong, with `{}` in place of the exception.

    Raises:
        SlimeError: the block raised something.
    """
    timer = threading.Timer(PATIENCE_S, _end, [threading.get_ident(), fault])
    timer.daemon = True
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise fault(raised.replace("{}", f"{type(error).__name__}: {error}")) from error
    finally:
        timer.cancel()


def _end(thread: int, fault: Fault) -> None:
    frame = sys._current_frames()[thread]
    stands = f"it stands in {frame.f_code.co_filename}:{frame.f_lineno}"
    error = fault(f"it takes longer than {PATIENCE_S:g} s to import, or to answer a hook; {stands}")
    sys.stderr.write(f"slime: {error}\n")
    sys.stderr.flush()
    os._exit(EXIT_ERROR)
