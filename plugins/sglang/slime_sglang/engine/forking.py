"""`python -m slime_sglang.engine.forking FD PARENT [follows]`: imports SGLang once, and forks engines from it.

Each does what the launcher does, with the arguments, the environment and the standard streams that the launcher would
have got, and ends with whoever asked for it, or with this process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from slime.engines.scratch import clear
from slime.lifetime import end_with_parent
from slime_sglang.engine.driver.forked import MESSAGE_BYTES, read_by_imports

LOOK_MS = 500
SHOWN = "SLIME_ENGINE_SCRATCH"
"""Variable that names what an engine leaves. It is in its title, as others see the environment of this process."""


def serve(listener: socket.socket, parent: int) -> None:
    """Fork an engine for each connection, tell how it ends, and end it with whoever asked, as long as the process
    `parent` lives that has started this one."""
    read, waits = read_by_imports(os.environ), select.poll()
    asking, living = dict[int, socket.socket](), dict[int, tuple[int, socket.socket, str]]()
    waits.register(listener, select.POLLIN)
    while os.getppid() == parent:
        for ready, _ in waits.poll(LOOK_MS):
            if ready == listener.fileno():
                connection, _ = listener.accept()
                if _user_of(connection) == os.getuid():
                    asking[connection.fileno()] = connection
                    waits.register(connection, select.POLLIN)
            elif ready in asking:
                connection = asking[ready]
                message, streams = _received(connection)
                if message:
                    pid = _forked(message, *streams) if read_by_imports(message["environment"]) == read else 0
                    _tell(connection, pid)
                    if pid:
                        process = os.pidfd_open(pid)
                        living[process] = pid, connection, message["environment"][SHOWN]
                        waits.register(process, select.POLLIN)
                    continue
                waits.unregister(ready)
                del asking[ready]
                for pid, of, scratch in living.values():
                    if of is connection:
                        clear(scratch)
                        with suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)
                connection.close()
            else:
                waits.unregister(ready)
                pid, connection, _ = living.pop(ready)
                os.close(ready)
                _tell(connection, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _user_of(connection: socket.socket) -> int:
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is asked for, with its streams; empty if whoever asked has ended."""
    with suppress(ConnectionResetError):
        message, streams, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
        return json.loads(message or "{}"), streams
    return {}, []


def _tell(connection: socket.socket, value: int) -> None:
    with suppress(OSError):  # whoever asked has ended
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
    import setproctitle  # SGLang's

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
    shown = f"{SHOWN}={os.environ[SHOWN]}"
    setproctitle.setproctitle(" ".join([sys.executable, "-m", launcher.__name__, shown, *sys.argv[1:]]))
    launcher.launch()
    sys.exit()


def main(fd: int, parent: int, follows: bool) -> None:
    import setproctitle

    from slime_sglang.engine import launcher

    if follows:
        end_with_parent(parent)
    setproctitle.getproctitle()  # what it writes over is found only before a variable is set
    launcher.skip_what_no_engine_needs()
    launcher.import_server()
    if launcher.on_cpu():  # CUDA does not survive a fork
        serve(socket.socket(fileno=fd), parent)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), len(sys.argv) > 3)
