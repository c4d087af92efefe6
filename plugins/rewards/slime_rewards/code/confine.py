"""Runs one program that nobody trusts. Started as `python -I -S confine.py SPEC TOLD`: it imports nothing of slime.

The descriptor SPEC has what `sandbox.py` wrote. Before the program's first line this process gives up for good: writing
files, reading any but the interpreter's, starting processes, sockets, signals to others, its capabilities, and every
system call that `calls.py` does not list. Then it writes `BEGUN` to the descriptor TOLD and closes it, or writes why it
cannot, and runs nothing. So nothing that the program does can look as if it had not been run.
"""

from __future__ import annotations

import _thread
import builtins
import ctypes
import io
import marshal
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer than all else here
    from typing import Any

BEGUN, BEFORE = b"begun", "before the program: "
LEAST_LANDLOCK, MOST_LANDLOCK = 3, 6
"""Versions of Landlock: from the first on it stops truncation (Linux 6.2), the last is the newest whose rights are
known here."""
SCOPES_FROM = 6
"""The version from which signals and abstract sockets end at the program (Linux 6.12)."""
_NO_NEW_PRIVS, _DROP_BOUND, _DIES_WITH_PARENT = 38, 24, 1  # <linux/prctl.h>
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 2, 4, 8, 1 << 14
_FILES = {3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1, 6: (1 << 16) - 1}  # <linux/landlock.h>
_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
_NEW_USER_PID_IPC_MOUNTS = 0x10000000 | 0x20000000 | 0x08000000 | 0x00020000  # <linux/sched.h>
_BIND, _RECURSIVE, _PRIVATE, _NO_SET_USER_ID, _NO_DEVICES = 4096, 16384, 1 << 18, 2, 4  # <linux/mount.h>
_NO_CORE = 1  # core(5): with 0 a program that collects cores is still started
_SIGNALS_THAT_WAIT = 11  # RLIMIT_SIGPENDING, which counts those of all of the user's processes
_OWN_PID = b"\xff\xff\xff\xff"  # as in `calls.py`

_STREAMS = {
    f"{folder}/{name}": number
    for folder, names in (
        ("/dev", ("stdin", "stdout", "stderr")),
        *(((f"{at}/fd"), "012") for at in ("/dev", "/proc/self")),
    )
    for number, name in enumerate(names)
}
_libc = ctypes.CDLL(None, use_errno=True)


def landlock() -> int:
    """The version of the kernel's Landlock; 0 or less: it has none."""
    version: int = _libc.syscall(444, None, ctypes.c_size_t(0), 1)
    return version


class _RefusedError(Exception):
    """The machine does not permit to confine the program."""


def _require(result: int, what: str) -> int:
    if result < 0:
        raise _RefusedError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _enter_namespaces(root: str, readable: list[str]) -> None:
    """See no process, no file but `readable`, and no shared memory from here on. Returns in a child of this process,
    which waits for it and ends as it does."""
    user, group = os.geteuid(), os.getegid()
    _require(_libc.unshare(_NEW_USER_PID_IPC_MOUNTS), "namespaces")
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        _see_only(root, readable)
        child = os.fork()
    except OSError as error:
        raise _RefusedError(f"namespaces: {error}") from error
    if child:
        _end_as(child)
    _require(_libc.prctl(_DIES_WITH_PARENT, 9, 0, 0, 0), "the parent's death")


def _see_only(root: str, readable: list[str]) -> None:
    _mount("", "/", "", _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SET_USER_ID | _NO_DEVICES, "size=1m,mode=755")
    seen: list[str] = []
    for path in sorted(filter(os.path.exists, readable)):
        if any(path.startswith(f"{above}/") for above in seen):
            continue
        here = root + path
        os.makedirs(here if os.path.isdir(path) else os.path.dirname(here), exist_ok=True)
        if not os.path.isdir(path):
            os.close(os.open(here, os.O_CREAT))
        _mount(path, here, "", _BIND | _RECURSIVE)
        seen.append(path)
    os.chroot(root)
    os.chdir("/")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _require(_libc.mount(*words), f"a mount at {target}")


def _end_as(child: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, _NO_CORE))
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)  # the second, where Python ignores the signal


def _confine_files(readable: list[str], version: int) -> None:
    rights = [_FILES[version], *[_TCP] * (version >= 4), *[_ABSTRACT_SOCKETS_AND_SIGNALS] * (version >= SCOPES_FROM)]
    handled = struct.pack(f"={len(rights)}Q", *rights)
    rules = _require(_libc.syscall(444, handled, ctypes.c_size_t(len(handled)), 0), "Landlock")
    for path in readable:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        right = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE
        if path == os.devnull:
            right |= _WRITE_FILE | _TRUNCATE
        _require(_libc.syscall(445, rules, 1, struct.pack("=Qi", right, place), 0), "Landlock")
        os.close(place)
    _require(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _require(_libc.syscall(446, rules, 0), "Landlock")
    os.close(rules)


def _drop_capabilities() -> None:
    for each in range(64):
        _libc.prctl(_DROP_BOUND, each, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _require(_libc.capset(header, none), "capset")


def _confine_calls(number: int, program: bytes) -> None:
    own = struct.pack("=I", os.getpid())
    steps = [program[at : at + 8] for at in range(0, len(program), 8)]
    program = b"".join(step[:4] + own if step[4:] == _OWN_PID else step for step in steps)
    code = ctypes.create_string_buffer(program)
    fprog = struct.pack("@HP", len(steps), ctypes.addressof(code))
    _require(_libc.syscall(number, 1, 1, fprog), "seccomp")  # for all threads


def _limits(memory_mb: int, cpu_s: int, output_bytes: int) -> dict[int, int]:
    with open("/proc/self/statm") as sizes:
        grown = int(sizes.read().split()[0]) * resource.getpagesize() + memory_mb * 2**20
    return {resource.RLIMIT_AS: grown, resource.RLIMIT_CPU: cpu_s, resource.RLIMIT_FSIZE: output_bytes,
            resource.RLIMIT_CORE: _NO_CORE, resource.RLIMIT_NOFILE: 64, resource.RLIMIT_MEMLOCK: 0,
            _SIGNALS_THAT_WAIT: 64}  # fmt: skip


def _be_usual(most_stack: int) -> None:
    """Give programs what they find elsewhere: `exit`, which -S leaves out; integers of any length as text; threads with
    a stack of any size, up to what memory there is; and standard streams by their paths, without /proc."""
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    sys.set_int_max_str_digits(0)
    sys.argv = ["answer.py"]
    own_size, own_open, own_descriptor = _thread.stack_size, io.open, os.open

    def stack_size(size: int = 0) -> int:
        return own_size(min(size, most_stack))

    def opened(file: Any, *args: Any, **keywords: Any) -> Any:
        place = file if isinstance(file, int) else os.fspath(file)
        return own_open(os.dup(_STREAMS[place]) if place in _STREAMS else file, *args, **keywords)

    def descriptor(path: Any, *args: Any, **keywords: Any) -> int:
        return os.dup(_STREAMS[path]) if path in _STREAMS else own_descriptor(path, *args, **keywords)

    _thread.stack_size = stack_size
    builtins.open = io.open = opened
    os.open = descriptor


def main() -> None:
    with open(int(sys.argv[1]), "rb") as file:
        spec = marshal.load(file)  # of the same interpreter; to import json takes longer than all else here
    told = int(sys.argv[2])
    _libc.prctl(_DIES_WITH_PARENT, 9, 0, 0, 0)
    confined, limits = spec["confined"], _limits(spec["memory_mb"], spec["cpu_s"], spec["output_bytes"])
    sys.path[:] = spec["path"]
    try:
        if confined and confined["namespaces"]:
            _enter_namespaces(os.getcwd(), confined["readable"])
        for each, value in limits.items():
            resource.setrlimit(each, (value, value))
        if confined:
            _confine_files(confined["readable"], confined["landlock"])
            _drop_capabilities()
            _confine_calls(confined["seccomp"], confined["calls"])
    except _RefusedError as why:
        os.write(told, str(why).encode())
        os._exit(1)
    # What it pickles or imports is its own, not this file's. Called, it is a module that somebody imports.
    name = "__main__" if spec["call"] is None else "answer"
    sys.modules["__main__"] = sys.modules[name] = program = type(sys)(name)
    names = vars(program)
    _be_usual(spec["memory_mb"] * 2**20 // 2)
    try:
        exec(compile(spec["before"], "before.py", "exec", dont_inherit=True), names)
    except BaseException as why:  # noqa: BLE001 because it may end in any way, and is told
        os.write(told, f"{BEFORE}{type(why).__name__}: {why}".encode(errors="replace"))
        os._exit(1)
    os.write(told, BEGUN)
    os.close(told)
    if spec["call"] is None:
        exec(compile(spec["code"], "answer.py", "exec", dont_inherit=True), names)
        return
    said, sys.stdout = sys.stdout, sys.stderr  # what it prints is not its value
    called: dict[str, Any] = {"__name__": "called"}
    exec(compile(spec["called"], "called.py", "exec"), called)
    said.write(called["run"](names, spec["code"], spec["call"], spec["names"], spec["prefers_methods"]))
    said.flush()


if __name__ == "__main__":
    main()
