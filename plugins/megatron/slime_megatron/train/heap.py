"""The C library's heap, which keeps freed memory."""

from __future__ import annotations

import ctypes


def release() -> None:
    """Return what is free in the heap to the system, holes between living blocks included; with glibc, which says how.

    glibc serves tensors of up to 32 MB from its heap once one of that size was freed, and hardly returns any of it.
    What is gathered for a checkpoint leaves holes there which the next one does not fit exactly: the process would grow
    by a tensor now and then, for as long as it lives.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
