"""Engines on a CPU that are forked from a process which has imported SGLang: the import takes longer than all else of a
small engine, so the driver begins it before anything else, and engines of a host share it.

That process (`slime_sglang.engine.forking`) is asked through a socket that has no file, by processes of its own user
alone. Who gets no engine from it, because its environment is another one, or it has ended, starts a process as ever.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedWriter

ADDRESS = "SLIME_ENGINES_FORKED"
"""Variable with the name of the socket, for the processes that keep engines."""
MODULE = "slime_sglang.engine.forking"
READ = ("CUDA", "HF_", "LD_", "MKL_", "OMP_", "PYTHON", "SGLANG_", "TORCH", "TRANSFORMERS_", "TRITON_")
"""Beginnings of the names of variables that SGLang and what it imports read as they are imported."""
NOT_READ = (
    "PYTHONBREAKPOINT",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "SGLANG_CPU_OMP_THREADS_BIND",
    "SGLANG_DISAGGREGATION_",
    "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE",
    "SGLANG_HOST_IP",
    "TORCHINDUCTOR_CACHE_DIR",
)
"""Of others: those of Ray's processes, the path, which an engine gets, those that SGLang reads once it starts, and what
torch sets itself."""
MESSAGE_BYTES = 1 << 17


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """What the import of SGLang depends on."""
    return {
        name: value for name, value in environment.items() if name.startswith(READ) and not name.startswith(NOT_READ)
    }


def begin(environment: Mapping[str, str], *, follows: bool) -> tuple[str, subprocess.Popen[bytes]]:
    """Begin to import SGLang in a process with these variables.

    Args:
        follows: it ends when the thread that called this ends; else soon after this process.

    Returns:
        For `ADDRESS`; and the process.
    """
    address = f"slime-engines-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(listener.fileno()), str(os.getpid()), *["follows"] * follows],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # where the import fails, an engine that starts by itself has the reason
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env=environment,
            start_new_session=True,
        )
    return address, process


@contextmanager
def forking(environment: Mapping[str, str]) -> Iterator[None]:
    """Have engines that are started in the block, here or by processes of this one, forked where they can be."""
    if ADDRESS in os.environ:  # of a process of tests, which has imported it already
        yield
        return
    address, process = begin(environment, follows=True)
    os.environ[ADDRESS] = address
    try:
        yield
    finally:
        del os.environ[ADDRESS]
        process.kill()
        process.wait()


def fork(
    arguments: Sequence[str], environment: Mapping[str, str], log: BufferedWriter, limit_s: float
) -> Forked | None:
    """An engine, as the launcher with these arguments would be it; None if there is nothing to fork it from.

    Args:
        environment: of the engine.
        log: takes what it prints.
        limit_s: for the import of SGLang, which may not have ended yet.
    """
    told = json.dumps({"arguments": [*arguments], "environment": {**environment}, "folder": os.getcwd()}).encode()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    key, stdin = os.pipe()
    try:
        connection.settimeout(limit_s)
        connection.connect(f"\0{environment[ADDRESS]}")
        socket.send_fds(connection, [told], [key, log.fileno()])
        pid = int(connection.recv(MESSAGE_BYTES) or 0)
    except (KeyError, OSError):  # there is none, or it has ended
        pid = 0
    finally:
        os.close(key)
    if pid:
        connection.settimeout(None)
        return Forked(connection, pid, stdin)
    connection.close()
    os.close(stdin)
    return None


class Forked:
    """What is asked of a `subprocess.Popen`. The process ends with this one.

    Args:
        connection: tells how it ended.
        stdin: descriptor that it reads from.
    """

    def __init__(self, connection: socket.socket, pid: int, stdin: int) -> None:
        self.pid, self.stdin = pid, os.fdopen(stdin, "wb")
        self._connection, self._lock = connection, threading.Lock()
        self.returncode: int | None = None

    def wait(self) -> int:
        with self._lock:
            if self.returncode is None:
                self.returncode = int(self._connection.recv(MESSAGE_BYTES) or -signal.SIGKILL)
            return self.returncode

    def poll(self) -> int | None:
        if self._lock.acquire(blocking=False):
            try:
                if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
                    self.returncode = int(self._connection.recv(MESSAGE_BYTES) or -signal.SIGKILL)
            finally:
                self._lock.release()
        return self.returncode
