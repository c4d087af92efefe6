"""A worker's room of its own: its /dev/shm, which holds its temporary files too, and no sight of other processes.

By user and mount namespaces, for which no root is needed where the machine permits them. They go with their last
process, whatever ended that.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = "/dev/shm"
# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/capability.h>
_NEW_USER_AND_MOUNTS = 0x10000000 | 0x00020000
_NO_SET_USER_ID, _NO_DEVICES, _BIND = 2, 4, 4096
_PR_CAPBSET_DROP, _CAPABILITY_VERSION_3 = 24, 0x20080522
_NOT_FOR_WORKERS = (19, 27, 29)  # SYS_PTRACE; MKNOD and AUDIT_WRITE, so that other processes of root have more

_libc = ctypes.CDLL(None, use_errno=True)


def enter(hidden: Sequence[str]) -> bool:
    """Give this process, which has one thread, and all below it a room of their own, where the files `hidden` read as
    empty. False where it is not permitted: then a process of root has fewer capabilities, which keeps it out of the
    memory of root's other processes."""
    if not (trial := os.fork()):
        os._exit(0 if _try(hidden) else 1)
    if os.waitpid(trial, 0)[1] or not _try(hidden):
        _drop_capabilities()
        return False
    os.environ["TMPDIR"] = SHARED_MEMORY
    tempfile.tempdir = None
    return True


def num_bytes_held() -> int:
    """Bytes of the files in /dev/shm."""
    held = os.statvfs(SHARED_MEMORY)
    return (held.f_blocks - held.f_bfree) * held.f_frsize


def sees(pid: int) -> bool:
    """True if this process may look into another one's environment, for which as much is asked as for its memory."""
    with suppress(PermissionError):
        os.close(os.open(f"/proc/{pid}/environ", os.O_RDONLY))
        return True
    return False


def _try(hidden: Sequence[str]) -> bool:
    try:
        _unshare()
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", _NO_SET_USER_ID | _NO_DEVICES, "mode=1777")
        for path in hidden:
            if Path(path).exists():
                _mount(os.devnull, path, "", _BIND)
    except OSError:
        return False
    return True


def _unshare() -> None:
    """New namespaces; users and groups keep their numbers, as many as this process may map."""
    process, (below, above) = os.getpid(), os.pipe()
    if not (mapper := os.fork()):  # outside of them: whoever is inside may map no more than itself
        os.read(below, 1)
        os._exit(0 if _map_ids(process) else 1)
    try:
        _require(_libc.unshare(_NEW_USER_AND_MOUNTS))
    finally:
        os.write(above, b".")
        for end in (below, above):
            os.close(end)
        failed = os.waitpid(mapper, 0)[1]
    if failed:
        raise PermissionError("users and groups cannot be mapped")


def _map_ids(process: int) -> bool:
    try:
        if os.geteuid():
            Path(f"/proc/{process}/setgroups").write_text("deny")
        for kind, own in (("uid", os.geteuid()), ("gid", os.getegid())):
            lines = Path(f"/proc/self/{kind}_map").read_text().splitlines() if os.geteuid() == 0 else [f"{own} {own} 1"]
            same = "\n".join(f"{inside} {inside} {count}" for inside, _, count in map(str.split, lines))
            Path(f"/proc/{process}/{kind}_map").write_text(same)
    except OSError:
        return False
    return True


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _require(_libc.mount(*(text.encode() for text in (source, target, kind)), ctypes.c_ulong(flags), options.encode()))


def _drop_capabilities() -> None:
    """Drop them for good: no program that is started here has them either."""
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    for each in _NOT_FOR_WORKERS:
        _libc.prctl(_PR_CAPBSET_DROP, each, 0, 0, 0)
    _require(_libc.capget(header, data))
    for index in range(3):  # effective, permitted, inheritable: their first 32
        data[index] &= ~sum(1 << each for each in _NOT_FOR_WORKERS)
    _require(_libc.capset(header, data))


def _require(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
