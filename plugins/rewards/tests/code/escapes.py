"""What a program that nobody trusts tries, and the victims that it would reach outside of the sandbox."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

ESCAPES = {
    "a socket of the network": "import socket; socket.create_connection(('127.0.0.1', VICTIM_PORT))",
    "a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a pair of datagram sockets": "import socket; socket.socketpair(type=socket.SOCK_DGRAM)",
    "a datagram of a pair to a path": f"{(PAIR := 'import socket; a, b = socket.socketpair(type=socket.SOCK_DGRAM); ')}"
    "a.sendto(b'x', 'VICTIM_SOCKET')",
    "a datagram of a pair to a name": PAIR + "a.sendto(b'x', '\\0VICTIM_NAME')",
    "a descriptor to a path": PAIR + "a.sendmsg([b'x'], [(1, 1, (0).to_bytes(4, 'little'))], 0, 'VICTIM_SOCKET')",
    "a message of a stream": "import socket; a, b = socket.socketpair(); a.sendmsg([b'x'])",
    "a larger buffer of a socket": "import socket; socket.socketpair()[0].setsockopt(1, 7, 1 << 20)",
    "a larger pipe": "import fcntl, os; fcntl.fcntl(os.pipe()[0], 1031, 1 << 20)",
    "a signal of a descriptor": f"{(OWNED := 'import fcntl, socket; a, b = socket.socketpair(); ')}"
    "fcntl.fcntl(a, 8, VICTIM_PID); fcntl.fcntl(a, 10, 9); fcntl.fcntl(a, 4, 0o20000 | 0o4000); b.send(b'x')",
    "a signal of a descriptor, by ioctl": OWNED
    + "import struct; fcntl.ioctl(a, 0x8901, struct.pack('i', VICTIM_PID)); fcntl.fcntl(a, 10, 9); "
    "fcntl.fcntl(a, 4, 0o20000 | 0o4000); b.send(b'x')",
    "an owner of a descriptor": OWNED + "import struct; fcntl.fcntl(a, 15, struct.pack('ii', 1, VICTIM_PID))",
    "a lease": "import fcntl; fcntl.fcntl(0, 1024, 0)",
    "a lock": "import fcntl; fcntl.lockf(1, fcntl.LOCK_EX)",
    "reading a file": "open('VICTIM_FILE').read()",
    "reading passwords": "open('/etc/passwd').read()",
    "listing a folder": "import os; os.listdir('/')",
    "writing a file": "open('VICTIM_FILE', 'w').write('x')",
    "truncating a file": "import os; os.truncate('VICTIM_FILE', 0)",
    "changing rights": "import os; os.chmod('VICTIM_FILE', 0o777)",
    "changing times": "import os; os.utime('VICTIM_FILE')",
    "removing a file": "import os; os.remove('VICTIM_FILE')",
    "renaming a file": "import os; os.rename('VICTIM_FILE', 'VICTIM_FILE.2')",
    "a link": "import os; os.symlink('/etc/passwd', 'here')",
    "a file in its folder": "open('here', 'w')",
    "shared memory": "open('/dev/shm/slime-VICTIM_NAME', 'w')",
    "memory without a file": "import os; os.memfd_create('x')",
    "a process": "import os; os.fork() or os._exit(0)",
    "a program": "import subprocess; subprocess.run(['/bin/true'])",
    "another program in its place": "import os; os.execv('/bin/echo', ['echo', 'done'])",
    "killing another process": "import os; os.kill(VICTIM_PID, 9)",
    "killing its group": "import os; os.killpg(os.getpgrp(), 0)",
    "killing all": "import os; os.kill(-1, 9)",
    "queueing a signal": "import struct; call(129, VICTIM_PID, 9, struct.pack('iii', 9, 0, -1) + bytes(116))",
    "another process's memory": "open('/proc/VICTIM_PID/mem', 'rb')",
    "another process's environment": "open('/proc/VICTIM_PID/environ').read()",
    "another process's descriptors": "import os; os.pidfd_open(VICTIM_PID)",
    "another process's limits": "import resource; resource.prlimit(VICTIM_PID, resource.RLIMIT_NOFILE, (9, 9))",
    "another process's priority": "import os; os.setpriority(os.PRIO_PROCESS, VICTIM_PID, 19)",
    "another process's processors": "import os; os.sched_setaffinity(VICTIM_PID, [0])",
    "another process's session": "import os; os.getsid(VICTIM_PID)",
    "ptrace": "call(101, 0x4206, VICTIM_PID, 0, 0)",
    "a namespace": "call(272, 0x10000000)",
    "a mount": "call(165, 0, b'/', 0, 1 << 18, 0)",
    "keys of the kernel": "call(250, 0, -3, 0)",
    "io_uring": "call(425, 1, bytearray(120))",
    "bpf": "call(321, 0, bytearray(72), 72)",
    "another user": "import os; os.setresuid(-1, -1, -1)",
    "higher limits": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))",
    "clone3, which the filter cannot see into": "call(435, bytes(88), 88)",
}
"""Each raises OSError or ValueError inside, and does not outside."""
THREADS = """
import ctypes, time
libc, room = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)
begin, stack = ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.addressof(room) + (1 << 15)
places = [ctypes.c_void_p(ctypes.addressof(room) + place) for place in (0, 4096, 8)]
for _ in range(3000):
    libc.clone(begin, ctypes.c_void_p(stack), 0x3D0F00, None, *places)
time.sleep(99)
"""
"""Threads that take no memory of the program's own: all of them stand still on one stack."""
NO_CONTROL = {
    "killing all": "it would",
    "higher limits": "the limits are there outside, too",
    "keys of the kernel": "a container's own filter refuses them",
    "io_uring": "many kernels are set to refuse it",
    "bpf": "it takes rights that root has not everywhere",
    "a mount": "it takes rights that root has not everywhere",
    "clone3, which the filter cannot see into": "it would start a process",
    "a namespace": "many kernels are set to refuse it",
    "ptrace": "many kernels are set to refuse it",
    "another process's memory": "many kernels are set to refuse it",
    "a lease": "a deleted file has none",
}
"""What is not tried outside, and why."""
_CALL = """
def call(number, *arguments):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *map(lambda each: bytes(each) if isinstance(each, bytearray) else each, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""
TRY_ALL = """
import json
outcomes = {{}}
for name, code in {codes!r}.items():
    try:
        exec(code, {{}})
    except (OSError, ValueError) as error:
        outcomes[name] = f"refused {{error}}"
    else:
        outcomes[name] = "done"
print(json.dumps(outcomes))
"""
"""All of them in one program: after one that is done, the others tell nothing, and the test has failed."""


@contextmanager
def victim(user: int | None = None) -> Iterator[tuple[Mapping[str, str], Callable[[], list[str]]]]:
    """The programs that try to escape to a process, a file and sockets of the same user; and what harm came of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = stack.enter_context(subprocess.Popen(["sleep", "600"], user=user))
        stack.callback(process.kill)
        file, path, name = folder / "file", folder / "socket", f"slime-{os.getpid()}-{process.pid}"
        file.write_text("mine")
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        bound = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in range(2)]
        for each, address in zip(bound, (str(path), f"\0{name}"), strict=True):
            each.bind(address)
        for each, mode in ((folder, 0o777), (file, 0o666), (path, 0o666)):
            each.chmod(mode)
        known = {"VICTIM_FILE": str(file), "VICTIM_PID": str(process.pid), "VICTIM_SOCKET": str(path),
                 "VICTIM_NAME": name, "VICTIM_PORT": str(listener.getsockname()[1])}  # fmt: skip
        codes = {escape: _CALL + code for escape, code in ESCAPES.items()}
        for word, value in known.items():
            codes = {escape: code.replace(word, value) for escape, code in codes.items()}

        def harm() -> list[str]:
            reached = [
                kind for kind, each in zip(("tcp", "path", "name"), (listener, *bound), strict=True) if _has(each)
            ]
            hurt = ["file"] * (not file.exists() or file.read_text() != "mine")
            return [*reached, *hurt, *["process"] * (process.poll() is not None)]

        yield codes, harm
        Path(f"/dev/shm/slime-{name}").unlink(missing_ok=True)


def _has(waiting: socket.socket) -> bool:
    waiting.setblocking(False)
    try:
        waiting.accept() if waiting.type == socket.SOCK_STREAM else waiting.recv(1)
    except BlockingIOError:
        return False
    return True


_AS_NOBODY = """set -e
if [ -n "$1" ]; then
    mount --bind "$2" "$3"; mount -t tmpfs -o mode=755 tmpfs "$1"; mkdir -p "$2"; mount --move "$3" "$2"
fi
shift 3
exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
"""
"""Become another user, who may read this Python also where it lies in a folder of root's own: $1, the Python is $2."""


def as_nobody(place: Path) -> list[str]:
    python = Path(sys.base_prefix)
    closed = [str(each) for each in reversed(python.parents) if not each.stat().st_mode & 1]
    return ["unshare", "--mount", "sh", "-c", _AS_NOBODY, "sh", closed[0] if closed else "", str(python), str(place)]
