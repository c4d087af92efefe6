"""Runs one program that nobody trusts. Started as `python -I -S confine.py`: it imports nothing of slime.

Standard input has a header of ten digits, as many bytes of JSON (`Spec` of `sandbox.py`), and then what the program
reads. Before the program's first line this process gives up for good: writing files, reading any but the interpreter's,
starting processes, sockets, signals to others, and its capabilities. What cannot be given up ends it with `REFUSED`.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import struct
import sys

REFUSED = 97
"""Exit code: the machine does not permit to confine the program, so it was not run."""
LEAST_LANDLOCK = 3
"""Its version from which it stops truncation, too (Linux 6.2)."""
_NO_NEW_PRIVS, _DROP_BOUND, _FILTER = 38, 24, 2  # <linux/prctl.h>, <linux/seccomp.h>
_ALLOW, _KILL, _REFUSE, _NO_SUCH = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_X32, _THREAD, _UNIX = 0x40000000, 0x10000, 1
_EXECUTE, _READ_FILE, _READ_DIR = 1, 4, 8
_ALL_OF_FILES = (1 << 15) - 1  # what version 3 knows, all of <linux/landlock.h>
_AUDIT = 0xC000003E
_CALLS = {
    # processes, other processes
    57: "fork", 58: "vfork", 59: "execve", 322: "execveat", 101: "ptrace", 310: "process_vm_readv",
    311: "process_vm_writev", 312: "kcmp", 434: "pidfd_open", 438: "pidfd_getfd", 424: "pidfd_send_signal",
    440: "process_madvise", 448: "process_mrelease", 200: "tkill", 129: "rt_sigqueueinfo", 297: "rt_tgsigqueueinfo",
    141: "setpriority", 144: "sched_setscheduler", 203: "sched_setaffinity", 314: "sched_setattr", 251: "ioprio_set",
    109: "setpgid", 112: "setsid", 256: "migrate_pages", 279: "move_pages",
    # sockets, and memory that outlives a process
    41: "socket", 42: "connect", 49: "bind", 50: "listen", 29: "shmget", 64: "semget", 68: "msgget", 240: "mq_open",
    319: "memfd_create", 447: "memfd_secret", 425: "io_uring_setup", 426: "io_uring_enter", 427: "io_uring_register",
    # what Landlock does not know of files
    90: "chmod", 91: "fchmod", 268: "fchmodat", 452: "fchmodat2", 92: "chown", 93: "fchown", 94: "lchown",
    260: "fchownat", 132: "utime", 235: "utimes", 261: "futimesat", 280: "utimensat", 188: "setxattr",
    189: "lsetxattr", 190: "fsetxattr", 197: "removexattr", 198: "lremovexattr", 199: "fremovexattr", 73: "flock",
    253: "inotify_init", 294: "inotify_init1", 254: "inotify_add_watch", 300: "fanotify_init", 304: "open_by_handle_at",
    # the machine
    165: "mount", 166: "umount2", 155: "pivot_root", 161: "chroot", 272: "unshare", 308: "setns", 428: "open_tree",
    429: "move_mount", 430: "fsopen", 432: "fsmount", 442: "mount_setattr", 175: "init_module", 313: "finit_module",
    176: "delete_module", 246: "kexec_load", 320: "kexec_file_load", 169: "reboot", 167: "swapon", 168: "swapoff",
    163: "acct", 170: "sethostname", 171: "setdomainname", 164: "settimeofday", 227: "clock_settime", 159: "adjtimex",
    305: "clock_adjtime", 172: "iopl", 173: "ioperm", 321: "bpf", 298: "perf_event_open", 323: "userfaultfd",
    248: "add_key", 249: "request_key", 250: "keyctl", 103: "syslog", 179: "quotactl", 443: "quotactl_fd",
}  # fmt: skip
"""Calls of x86-64 that are refused."""

_libc = ctypes.CDLL(None, use_errno=True)


def lacks() -> str:
    """What the machine does not have, in words; empty if a program can be confined."""
    if platform.machine() != "x86_64":
        return "it knows the system calls of x86-64 alone"
    version = landlock()
    if version < LEAST_LANDLOCK:
        has = f"has version {version}" if version > 0 else "has none"
        return f"Landlock {LEAST_LANDLOCK} or newer is needed (Linux 6.2), the kernel {has}"
    try:
        with open("/proc/sys/kernel/seccomp/actions_avail") as actions:
            return "" if "errno" in actions.read() else "the kernel has no seccomp filters"
    except OSError:
        return "the kernel has no seccomp filters"


def landlock() -> int:
    """The version of the kernel's Landlock; 0 or less: it has none."""
    version: int = _libc.syscall(444, None, ctypes.c_size_t(0), 1)
    return version


def _require(result: int, what: str) -> int:
    if result < 0:
        sys.stderr.write(f"{what}: {os.strerror(ctypes.get_errno())}\n")
        os._exit(REFUSED)
    return result


def _confine_files(readable: list[str]) -> None:
    rules = _require(_libc.syscall(444, struct.pack("=Q", _ALL_OF_FILES), ctypes.c_size_t(8), 0), "Landlock")
    for path in readable:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE
        _require(_libc.syscall(445, rules, 1, struct.pack("=Qi", rights, place), 0), "Landlock")
        os.close(place)
    _require(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _require(_libc.syscall(446, rules, 0), "Landlock")
    os.close(rules)


def _drop_capabilities() -> None:
    for each in range(64):
        _libc.prctl(_DROP_BOUND, each, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _require(_libc.capset(header, none), "capset")


def _confine_calls() -> None:
    pid = os.getpid()
    program = [_step(_LOAD, 4), _step(_EQUAL, _AUDIT, yes=1), _step(_RETURN, _KILL), _step(_LOAD, 0)]
    program += [_step(_AT_LEAST, _X32, no=1), _step(_RETURN, _KILL)]
    program += [_step(_EQUAL, 435, no=1), _step(_RETURN, _NO_SUCH)]  # clone3, whose flags it cannot see
    for number in sorted(_CALLS):
        program += [_step(_EQUAL, number, no=1), _step(_RETURN, _REFUSE)]
    program += [_step(_EQUAL, 56, no=4), _step(_LOAD, 16), _step(_BITS, _THREAD, no=1), _step(_RETURN, _ALLOW)]
    program += [_step(_RETURN, _REFUSE)]
    # signals to itself, limits of its own, pairs of unix sockets
    for number, allowed in ((62, pid), (234, pid), (302, 0), (53, _UNIX)):
        program += [_step(_EQUAL, number, no=4), _step(_LOAD, 16), _step(_EQUAL, allowed, no=1)]
        program += [_step(_RETURN, _ALLOW), _step(_RETURN, _REFUSE)]
    program += [_step(_RETURN, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(program))
    fprog = struct.pack("@HP", len(program), ctypes.addressof(code))
    _require(_libc.syscall(317, 1, 1, fprog), "seccomp")  # for all threads


def _step(code: int, operand: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, operand)


def _limit(memory_mb: int, cpu_s: int, output_bytes: int) -> None:
    with open("/proc/self/statm") as sizes:
        grown = int(sizes.read().split()[0]) * resource.getpagesize() + memory_mb * 2**20
    limits = {resource.RLIMIT_AS: grown, resource.RLIMIT_CPU: cpu_s, resource.RLIMIT_FSIZE: output_bytes,
              resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 64, resource.RLIMIT_MEMLOCK: 0}  # fmt: skip
    for each, value in limits.items():
        resource.setrlimit(each, (value, value))


def _take(count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        chunk = os.read(0, count - len(taken))
        if not chunk:
            os._exit(REFUSED)
        taken += chunk
    return taken


def main() -> None:
    spec = json.loads(_take(int(_take(10))))
    os.closerange(3, 256)
    sys.path[:] = spec["path"]
    _limit(spec["memory_mb"], spec["cpu_s"], spec["output_bytes"])
    if not spec["unconfined"]:
        _confine_files(spec["readable"])
        _drop_capabilities()
        _confine_calls()
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    if spec["call"] is None:
        exec(compile(spec["code"], "answer.py", "exec"), names)
        return
    said, sys.stdout = sys.stdout, sys.stderr  # what it prints is not its value
    exec(compile(spec["code"], "answer.py", "exec"), names)
    value = eval(compile(spec["call"], "test.py", "eval"), names)
    said.write(repr(value))
    said.flush()


if __name__ == "__main__":
    main()
