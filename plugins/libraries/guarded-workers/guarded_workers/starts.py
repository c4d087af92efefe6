"""Starts of processes below a scorer wait until its guard allows them, by seccomp(2)'s notifications.

So a loop of forks gets as many processes as the guard allows, and nothing begins while it kills. It needs no root and
works in containers; the kernel has it since 5.5. Starts of threads do not ask.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Iterator

# <linux/seccomp.h>, <linux/filter.h>, <linux/audit.h>, <linux/sched.h>, <linux/prctl.h>
_SET_MODE_FILTER, _SPEC_ALLOW, _NEW_LISTENER = 1, 1 << 2, 1 << 3
_ALLOW, _NOTIFY, _NO_SUCH_CALL = 0x7FFF0000, 0x7FC00000, 0x00050000 | errno.ENOSYS
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_CALL, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where `struct seccomp_data` has them
_CLONE_THREAD, _CLONE3, _X32 = 0x10000, 435, 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
_NOTICE, _ANSWER = struct.Struct("=Q72x"), struct.Struct("=QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctls, with the sizes of the two in them
_CONTINUE = 1

_NUMBERS = {"x86_64": (0xC000003E, 317, 56, (57, 58)), "aarch64": (0xC00000B7, 277, 220, ())}
"""The audit number, and the numbers of seccomp, clone, and of fork and vfork, by machine."""

_libc = ctypes.CDLL(None, use_errno=True)


class Starts:
    """The guard's end, of the descriptor that `listener()` gave the scorer: readable while a start waits."""

    def __init__(self, listener: int) -> None:
        self._listener = listener

    def fileno(self) -> int:
        return self._listener

    def allow(self) -> None:
        """Let the one that has waited longest go on."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
            (number,) = _NOTICE.unpack(notice)
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(number, 0, 0, _CONTINUE))
        except OSError as error:
            # Who asked was killed, or a signal came and it asks again.
            if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.EINTR):
                raise


def listener() -> int | None:
    """A descriptor for whose holder all starts of processes by this one and below it wait; None: the machine has none.
    Set-user-ID programs get no more rights below this process, unless it may administer its namespace."""
    if platform.machine() not in _NUMBERS:
        return None
    audit, seccomp, clone, forks = _NUMBERS[platform.machine()]
    program = b"".join(_program(audit, clone, forks))
    code = ctypes.create_string_buffer(program, len(program))
    fprog = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    flags = _NEW_LISTENER | _SPEC_ALLOW
    for _ in range(2):
        if (descriptor := _libc.syscall(seccomp, _SET_MODE_FILTER, flags, fprog)) >= 0:
            os.set_inheritable(descriptor, False)
            return int(descriptor)
        if ctypes.get_errno() != errno.EACCES or _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            return None
    return None


def _program(audit: int, clone: int, forks: tuple[int, ...]) -> Iterator[bytes]:
    """The filter. clone3, whose flags it cannot see, is said not to exist: then libc uses clone."""
    yield from (_step(_LOAD, _ARCHITECTURE), _step(_IF_EQUAL, audit, yes=1), _step(_RETURN, _NO_SUCH_CALL))
    yield _step(_LOAD, _CALL)
    yield from (_step(_IF_AT_LEAST, _X32, no=1), _step(_RETURN, _NO_SUCH_CALL))
    yield from (_step(_IF_EQUAL, _CLONE3, no=1), _step(_RETURN, _NO_SUCH_CALL))
    for fork in forks:
        yield from (_step(_IF_EQUAL, fork, no=1), _step(_RETURN, _NOTIFY))
    yield from (_step(_IF_EQUAL, clone, yes=1), _step(_RETURN, _ALLOW))
    yield from (_step(_LOAD, _FIRST_ARGUMENT), _step(_IF_BITS, _CLONE_THREAD, no=1), _step(_RETURN, _ALLOW))
    yield _step(_RETURN, _NOTIFY)


def _step(code: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are how many to skip."""
    return struct.pack("=HBBI", code, yes, no, operand)
