"""Schedulers and detokenizers that import what they need beside the server, and not one after the other.

SGLang starts them by `multiprocessing`'s "spawn" once the server has imported everything: each then imports the same,
ten seconds on a host with GPUs, where a fork is impossible because CUDA does not survive it. The processes here are
started with the server, import the same in the same order, and wait for what "spawn" would hand them. Where anything
differs from what a spawned process would have found, SGLang's own way is taken.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from multiprocessing import context, forkserver, popen_forkserver, popen_spawn_posix, reduction, resource_tracker, spawn
from multiprocessing import util as mp_util
from typing import Any

SCHEDULER = "sglang.srt.managers.scheduler"
DETOKENIZER = "sglang.srt.managers.detokenizer_manager"
LAUNCHER = "slime_sglang.engine.launcher"
AT_EXEC = ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES")
"""Variables that count before the first line of Python runs."""
SET_BY_SGLANG = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",
    "CUDA_MODULE_LOADING": "AUTO",
    "TRTLLM_ENABLE_PDL": os.environ.get("TRTLLM_ENABLE_PDL", "1"),
    "CUTE_DSL_LOG_LEVEL": os.environ.get("CUTE_DSL_LOG_LEVEL", "30"),
    "CUTE_DSL_LOG_TO_CONSOLE": os.environ.get("CUTE_DSL_LOG_TO_CONSOLE", "1"),
}
"""By every server before it starts its workers (`_set_envs_and_config`): set sooner, they are no change."""
MAX_FDS = 250
LENGTH = 8
"""Bytes that say how long a message is."""

_waiting: list[Early] = []


class Early:
    """A process that imports `module` now, and becomes the process that SGLang starts with a function of it."""

    def __init__(self, module: str) -> None:
        self.module, self.executable = module, spawn.get_executable()
        self.born = dict(os.environ)
        self.line, theirs = socket.socketpair()
        command = [os.fsdecode(self.executable), "-m", __name__, str(theirs.fileno()), module, *sys.argv[1:]]
        self.pid = mp_util.spawnv_passfds(os.fsencode(self.executable), command, [theirs.fileno()])
        theirs.close()

    def fits(self, target: Callable[..., Any] | None) -> bool:
        """Whether it is what "spawn" would start now for `target`, as far as this side knows."""
        named = getattr(target, "__module__", None)
        same = (named, spawn.get_executable()) == (self.module, self.executable)
        return same and all(os.environ.get(name) == self.born.get(name) for name in AT_EXEC)

    def take(self) -> bool:
        """Wait until it has imported everything. False if it read a variable then that has another value now, or died;
        it has ended then."""
        names = self.born.keys() | os.environ.keys()
        changed = {name: os.environ.get(name) for name in names if os.environ.get(name) != self.born.get(name)}
        _send(self.line, json.dumps(changed).encode())
        stale = _receive(self.line)
        if stale == b"[]":
            return True
        logging.getLogger(__name__).info("%s is started again: %s", self.module, stale.decode() or "it has ended")
        self.line.close()
        os.waitpid(self.pid, 0)
        return False


class _Popen(popen_spawn_posix.Popen):
    """A spawned process that was started before: file descriptors reach it as the fork server's children get theirs."""

    DupFd = popen_forkserver._DupFd  # type: ignore[assignment]

    def __init__(self, process: Any, early: Early) -> None:
        self._early = early
        super().__init__(process)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)  # type: ignore[attr-defined]
        return len(self._fds) - 1  # type: ignore[attr-defined]

    def _launch(self, process: Any) -> None:
        data = io.BytesIO()
        prepared = spawn.get_preparation_data(process._name)
        context.set_spawning_popen(self)
        try:
            reduction.dump(prepared, data)
            reduction.dump(process, data)
        finally:
            context.set_spawning_popen(None)
        ended, ends = os.pipe()
        read, write = os.pipe()
        fds = [resource_tracker.getfd(), read, ends, *self._fds]  # type: ignore[attr-defined]
        with self._early.line as line:
            socket.send_fds(line, [b"\0"], fds)
        self.pid, self.sentinel = self._early.pid, ended
        with open(write, "wb", closefd=False) as child:
            child.write(data.getbuffer())
        self.finalizer = mp_util.Finalize(self, _close, [ended, write])
        os.close(read)
        os.close(ends)


def start(fields: Mapping[str, Any]) -> None:
    """Start what a server with these fields of `ServerArgs` will ask for, and have `multiprocessing` take it.

    An engine on a CPU forks. One whose attention is data-parallel starts its schedulers from a process of its own.
    """
    if fields.get("device") == "cpu" or fields.get("dp_size", 1) > 1:
        return
    os.environ.update(SET_BY_SGLANG)
    count = fields.get("tp_size", 1) * fields.get("pp_size", 1) // fields.get("nnodes", 1)
    _waiting.append(Early(DETOKENIZER))
    with _memory_saver() if fields.get("enable_memory_saver") else nullcontext():
        _waiting.extend(Early(SCHEDULER) for _ in range(count))
    context.SpawnProcess._Popen = staticmethod(popen)  # type: ignore[assignment,method-assign]


def popen(process: Any) -> Any:
    """What `multiprocessing` calls to spawn a process: take the one that waits for it, where there is one that fits."""
    early = next((each for each in _waiting if each.fits(process._target)), None)
    if early is None:
        return popen_spawn_posix.Popen(process)
    _waiting.remove(early)
    return _Popen(process, early) if early.take() else popen_spawn_posix.Popen(process)


def _memory_saver() -> AbstractContextManager[None]:
    """What SGLang starts schedulers in, for their library to be loaded before CUDA's."""
    import torch_memory_saver  # type: ignore[import-untyped]

    saver: AbstractContextManager[None] = torch_memory_saver.configure_subprocess()
    return saver


def main(fd: int, module: str, arguments: Sequence[str]) -> None:
    """In the process: import what "spawn" would have it import, and wait to be taken."""
    import setproctitle  # SGLang's, which names its processes by it

    sys.argv = [sys.argv[0], *arguments]
    setproctitle.getproctitle()  # what it writes over is found only before a variable is set
    seen = _Seen()
    spawn._fixup_main_from_name(LAUNCHER)  # type: ignore[attr-defined]
    import_module(module)
    with socket.socket(fileno=fd) as line:
        told = _receive(line)
        if not told:  # the server has ended
            return
        changed: dict[str, str | None] = json.loads(told)
        # What the imports of the server have set, those of this process have set as well.
        stale = sorted(name for name in changed.keys() & seen.end() if os.environ.get(name) != changed[name])
        _send(line, json.dumps(stale).encode())
        if stale:
            return
        for name, value in changed.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})
        _, fds, _, _ = socket.recv_fds(line, 1, MAX_FDS)
    if not fds:
        return
    tracker, read, _, *inherited = fds  # the third says by its end that this process has ended
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    forkserver._forkserver._inherited_fds = inherited  # type: ignore[attr-defined]
    sys.exit(spawn._main(read, os.dup(read)))


class _Seen:
    """Names of the variables that were asked for since, set or not."""

    def __init__(self) -> None:
        names: set[str] = set()
        self._names, self._plain = names, os._Environ.__getitem__
        plain = self._plain

        def get(environment: Any, name: str) -> Any:
            names.add(name)
            return plain(environment, name)

        os._Environ.__getitem__ = get  # type: ignore[assignment,method-assign]

    def end(self) -> set[str]:
        os._Environ.__getitem__ = self._plain  # type: ignore[method-assign]
        return self._names


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _send(line: socket.socket, message: bytes) -> None:
    with suppress(BrokenPipeError):  # it has ended, which `_receive` tells
        line.sendall(len(message).to_bytes(LENGTH, "big") + message)


def _receive(line: socket.socket) -> bytes:
    """A message; empty if the other side has ended."""
    try:
        with line.makefile("rb", buffering=0) as file:
            return _exactly(file, int.from_bytes(_exactly(file, LENGTH), "big"))
    except ConnectionResetError:  # it was killed
        return b""


def _exactly(file: Any, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := file.read(length - len(data))):
        data += more
    return data if len(data) == length else b""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
