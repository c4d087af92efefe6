"""The system calls that a program may make, and with which arguments, as a filter of seccomp(2) for two machines.

What stands here is allowed, and nothing else: another call is refused (EPERM), or said not to exist (ENOSYS) if it is
so new that its callers have another way. A filter sees registers, no memory that they point to.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""The column of `CALLS`, the audit number, and the number of seccomp, by machine."""
OWN_PID = 0xFFFFFFFF
"""Placeholder of the process's own id, which the loader of the filter puts in."""
NEWER = 424
"""Least number of the calls that are the same on all machines, and whose callers know what to do without them."""

# <linux/seccomp.h>, <linux/filter.h>
ALLOW, KILL, REFUSE, NO_SUCH = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_CALL, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where `struct seccomp_data` has them
_X32 = 0x40000000

CALLS: dict[str, tuple[int | None, int | None]] = {
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216),
    "madvise": (28, 233), "msync": (26, 227),
    # files that Landlock permits, and descriptors
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "preadv": (295, 69), "pwritev": (296, 70), "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436),
    "open": (2, None), "openat": (257, 56), "fstat": (5, 80), "newfstatat": (262, 79), "stat": (4, None),
    "lstat": (6, None), "statx": (332, 291), "access": (21, None), "faccessat": (269, 48), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "umask": (95, 166),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "fcntl": (72, 25), "ioctl": (16, 29),
    # pipes, and pairs of sockets, as asyncio has one
    "pipe": (22, None), "pipe2": (293, 59), "socketpair": (53, 199), "sendto": (44, 206), "recvfrom": (45, 207),
    "shutdown": (48, 210), "getsockname": (51, 204),
    # waiting
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "futex": (202, 98), "sched_yield": (24, 124),
    # signals of its own
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, None),
    "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102), "restart_syscall": (219, 128),
    "kill": (62, 129), "tgkill": (234, 131),
    # threads
    "clone": (56, 220), "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293),
    # what it is, and what time it is
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None),
    "times": (100, 153), "getcpu": (309, 168), "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "getpgrp": (111, None), "getpgid": (121, 155),
    "getsid": (124, 156), "uname": (63, 160), "sysinfo": (99, 179), "getrusage": (98, 165), "getrlimit": (97, 163),
    "setrlimit": (160, 164), "prlimit64": (302, 261), "sched_getaffinity": (204, 123), "getrandom": (318, 278),
    "prctl": (157, 167),
    # its end
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
"""The calls that are allowed, with their numbers on x86-64 and aarch64 (which lacks the oldest)."""


class ArgumentTest(NamedTuple):
    """A test of 32 bits of an argument.

    Attributes:
        argument: counted from 0.
        values: one of which it is.
        mask: the bits that are looked at.
        high: the upper 32 bits, which matter where the argument is an address.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    high: bool = False


# <linux/sched.h>: what glibc starts a thread with; musl sets CLONE_DETACHED, which means nothing, as well
_THREAD, _DETACHED = 0x003D0F00, 0x00400000
_UNIX, _STREAM, _SOCKET_FLAGS = 1, 1, 0o2000000 | 0o4000
_O_PATH, _O_ASYNC, _LOCKED, _HUGE = 0o10000000, 0o20000, 0x2000, 0x40000
_SETFL = 4
_DUPFD, _GETFD, _SETFD, _GETFL, _DUPFD_CLOEXEC = 0, 1, 2, 3, 1030
_TCGETS, _GET_WINDOW_SIZE, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451
_GET_DUMPABLE, _SET_NAME, _GET_NAME = 3, 15, 16


def _without(argument: int, bits: int) -> ArgumentTest:
    return ArgumentTest(argument, (0,), bits)


_ITSELF, _NONE = ArgumentTest(0, (OWN_PID,)), ArgumentTest(0, (0,))

RULES: dict[str, tuple[tuple[ArgumentTest, ...], ...]] = {
    "clone": ((ArgumentTest(0, (_THREAD,), 0xFFFFFFFF & ~_DETACHED),),),
    "fcntl": (
        (ArgumentTest(1, (_DUPFD, _GETFD, _SETFD, _GETFL, _DUPFD_CLOEXEC)),),
        (ArgumentTest(1, (_SETFL,)), _without(2, _O_ASYNC)),
    ),
    "ioctl": ((ArgumentTest(1, (_TCGETS, _GET_WINDOW_SIZE, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX)),),),
    "open": ((_without(1, _O_PATH | _O_ASYNC),),),
    "openat": ((_without(2, _O_PATH | _O_ASYNC),),),
    "mmap": ((_without(3, _LOCKED | _HUGE),),),
    "socketpair": ((ArgumentTest(0, (_UNIX,)), ArgumentTest(1, (_STREAM,), 0xFFFFFFFF & ~_SOCKET_FLAGS)),),
    "sendto": ((ArgumentTest(4, (0,)), ArgumentTest(4, (0,), high=True)),),
    "prctl": ((ArgumentTest(0, (_GET_DUMPABLE, _SET_NAME, _GET_NAME)),),),
    "kill": ((_ITSELF,),),
    "tgkill": ((_ITSELF,),),
    "sched_getaffinity": ((_ITSELF,), (_NONE,)),
    "prlimit64": ((_NONE,),),
    "getpgid": ((_NONE,),),
    "getsid": ((_NONE,),),
}
"""Rules for a call's arguments: all tests of one of the alternatives hold. Calls without a rule take any."""


@cache
def filter_of(machine: str) -> bytes:
    """The filter of one of `MACHINES`, where `OWN_PID` stands for the process that loads it."""
    column, audit, _ = MACHINES[machine]
    numbers = {name: both[column] for name, both in CALLS.items()}
    steps = [step(LOAD, _ARCHITECTURE), step(EQUAL, audit, yes=1), step(RETURN, KILL), step(LOAD, _CALL)]
    steps += [step(AT_LEAST, _X32, no=1), step(RETURN, KILL)]
    for name, number in numbers.items():
        if number is not None:
            block = [*_block(RULES[name])] if name in RULES else [step(RETURN, ALLOW)]
            steps += [step(EQUAL, number, no=len(block)), *block]
    steps += [step(AT_LEAST, NEWER, no=1), step(RETURN, NO_SUCH), step(RETURN, REFUSE)]
    return b"".join(steps)


def _block(alternatives: tuple[tuple[ArgumentTest, ...], ...]) -> Iterator[bytes]:
    for tests in alternatives:
        each = [_loaded(test) for test in tests]
        left = sum(len(loads) + len(test.values) for loads, test in zip(each, tests, strict=True)) + 1
        for loads, test in zip(each, tests, strict=True):
            yield from loads
            left -= len(loads) + len(test.values)
            for index, value in enumerate(test.values):
                others = len(test.values) - 1 - index
                yield step(EQUAL, value, yes=others, no=0 if others else left)
        yield step(RETURN, ALLOW)
    yield step(RETURN, REFUSE)


def _loaded(test: ArgumentTest) -> list[bytes]:
    load = [step(LOAD, _FIRST_ARGUMENT + 8 * test.argument + 4 * test.high)]  # both machines have the low word first
    return load if test.mask == 0xFFFFFFFF else [*load, step(AND, test.mask)]


def step(code: int, operand: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are how many to skip."""
    return struct.pack("=HBBI", code, yes, no, operand)
