"""Engines forked from a process that has imported SGLang once: the import costs more than all else of a tiny engine.

Every process of tests has one such process, as soon as it needs one. What it forks does what SGLang's launcher does,
with the arguments, the environment and the standard streams that the launcher would have got, and ends with whoever
asked for it. A run may have its engines forked so, too (`of_a_run`).
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from io import BufferedWriter
from pathlib import Path
from typing import Any, NoReturn

from slime.config.schema import ClusterConfig, Device, Role
from slime.engines.software import ENGINES, Server
from slime.net import LOOPBACK_SETTINGS
from slime.topology.engines import EngineGroup
from slime.topology.environment import engine_environment
from slime.topology.topology import Topology
from slime_sglang.engine.driver.process import EngineProcess
from slime_sglang.engine.driver.software import SGLang

ADDRESS = "SLIME_TESTING_ENGINES"
"""Variable that names the folder of the process to ask, for those that a process of tests has started."""
SOCKET, ENVIRONMENT = "socket", "environment.json"
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


class ForkedEngine(EngineProcess):
    """An engine that is forked, where its environment is that of the import."""

    def launch(self, arguments: Sequence[str], environment: Mapping[str, str], log: Any) -> subprocess.Popen[bytes]:
        server = _Asked(Path(os.environ[ADDRESS]) if ADDRESS in os.environ else serving())
        if server.read != _of_import(environment):
            return super().launch(arguments, environment, log)
        return server.fork(arguments, environment, log)  # type: ignore[return-value]


class Forking(SGLang):
    def server(self, topology: Topology, *which: Any, **options: Any) -> Server:
        return ForkedEngine(topology, *which, **options)


FORKING = Forking()


def _of_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(READ) and not name.startswith(NOT_READ)
    }


@cache
def serving() -> Path:
    """The folder of the process that has imported SGLang. It ends with this one."""
    folder = Path(tempfile.mkdtemp(prefix="slime-forked-"))
    of_engine = engine_environment(ClusterConfig(device=Device.cpu), EngineGroup("", Role.regular, 1, 1, {}, {}, 1))
    environment = {**LOOPBACK_SETTINGS, **os.environ, **of_engine}
    (folder / ENVIRONMENT).write_text(json.dumps(_of_import(environment)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen(64)
        command = [sys.executable, "-m", __name__, str(listener.fileno()), str(folder)]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
        subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment, **options)
    return folder


def of_a_run() -> dict[str, str]:
    """Environment of a run on a CPU whose engines are to be forked: metadata of `slime-sglang` stands first that names
    `FORKING`. Empty where CUDA is, which does not survive a fork."""
    import torch

    if torch.cuda.device_count():
        return {}
    site = serving() / "site"
    info = site / "slime_sglang-0.dist-info"
    if not info.exists():
        info.mkdir(parents=True)
        told = metadata.distribution("slime-sglang")
        (info / "METADATA").write_text(str(told.read_text("METADATA")))
        groups = str(told.read_text("entry_points.txt"))
        (info / "entry_points.txt").write_text(
            re.sub(rf"(?<=\[{ENGINES}\]\nsglang = ).*", f"{__name__}:FORKING", groups)
        )
    path = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {ADDRESS: str(serving()), "PYTHONPATH": os.pathsep.join(path)}


class _Asked:
    """The process that has imported SGLang, from outside.

    Attributes:
        read: of its environment.
    """

    def __init__(self, folder: Path) -> None:
        self.read = json.loads((folder / ENVIRONMENT).read_text())
        self._socket = str(folder / SOCKET)

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str], log: Any) -> Forked:
        told = json.dumps({"arguments": [*arguments], "environment": {**environment}, "folder": os.getcwd()}).encode()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self._socket)
        key, stdin = os.pipe()
        socket.send_fds(connection, [told], [key, log.fileno()])
        os.close(key)
        return Forked(connection, stdin)


class Forked:
    """What `EngineProcess` asks of a `subprocess.Popen`. The process ends with this one.

    Args:
        connection: by which its id comes, and how it ended.
        stdin: descriptor that it reads from.
    """

    def __init__(self, connection: socket.socket, stdin: int) -> None:
        self.stdin: BufferedWriter = os.fdopen(stdin, "wb")
        self._connection, self._lock = connection, threading.Lock()
        self.pid = int(connection.recv(MESSAGE_BYTES))
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


def serve(listener: socket.socket) -> None:
    """Fork an engine for each connection, tell how it ends, and end it with whoever asked, as long as the process lives
    that has started this one."""
    parent, waits = os.getppid(), select.poll()
    asking, living = dict[int, socket.socket](), dict[int, tuple[int, socket.socket]]()
    waits.register(listener, select.POLLIN)
    while os.getppid() == parent:
        for ready, _ in waits.poll(LOOK_MS):
            if ready == listener.fileno():
                connection, _ = listener.accept()
                asking[connection.fileno()] = connection
                waits.register(connection, select.POLLIN)
            elif ready in asking:
                connection = asking[ready]
                message, streams, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
                if message:
                    pid = _forked(json.loads(message), *streams)
                    _tell(connection, pid)
                    process = os.pidfd_open(pid)
                    living[process] = pid, connection
                    waits.register(process, select.POLLIN)
                    continue
                waits.unregister(ready)
                del asking[ready]
                for pid, of in living.values():
                    if of is connection:
                        with suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)
            else:
                waits.unregister(ready)
                pid, connection = living.pop(ready)
                os.close(ready)
                _tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


LOOK_MS = 500


def _tell(connection: socket.socket, value: int) -> None:
    with suppress(BrokenPipeError):  # whoever asked has ended
        connection.send(str(value).encode())


def _forked(told: Mapping[str, Any], stdin: int, log: int) -> int:
    """Id of the process that becomes the engine. It leads a group of its own by then, which can be killed."""
    led, leads = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(told, stdin, log)
    for each in (stdin, log, leads):
        os.close(each)
    os.read(led, 1)  # it closes its end
    os.close(led)
    return pid


def _become(told: Mapping[str, Any], stdin: int, log: int) -> NoReturn:
    from slime_sglang.engine import launcher

    os.setsid()
    for number, stream in enumerate((stdin, log, log)):
        os.dup2(stream, number)
    os.closerange(3, 256)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ |= {**told["environment"], "SLIME_ENGINE_PARENT": str(os.getppid())}
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    tempfile.tempdir = None
    sys.argv[1:] = told["arguments"]
    launcher.launch()
    sys.exit()


def main() -> None:
    from slime_sglang.engine import launcher

    launcher.skip_what_no_engine_needs()
    launcher.import_server()
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
