"""Runs a function on several ranks of this machine, one process a rank, and never hangs.

Each rank is `python -m slime.testing.ranks` in a session of its own, so that killing a rank takes the helper
processes of a checkpoint along. A rank that is late prints the stack of every thread before it is killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_PRINT_STACKS = 1.0


class Rank(NamedTuple):
    """Where a process stands; `*rank` are the last four arguments of `slime.train.megatron.initialize`."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60) -> list[Any]:
    """Call `function(Rank(...), *args)` in `world_size` processes and return what each rank returned, by rank.

    Args:
        function: a module-level function; its file is imported anew in every rank.
        world_size: number of processes.
        *args: picklable arguments, the same for every rank.
        timeout_s: wall-clock seconds for the slowest rank, imports included.

    Raises:
        AssertionError: a rank raised, died or was late; with the traceback or the stacks of every rank.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = Path(folder)
        target = (function.__module__, sys.modules[function.__module__].__file__, function.__qualname__)
        (job / "job").write_bytes(pickle.dumps((target, args, world_size, _free_port(), sys.path)))
        processes = [_start(job, rank) for rank in range(world_size)]
        try:
            failure = _wait(processes, time.monotonic() + timeout_s)
        finally:
            _kill(processes)
        assert not failure, f"{failure}\n" + "\n".join(_log(job, rank) for rank in range(world_size))
        return [pickle.loads((job / f"result{rank}").read_bytes()) for rank in range(world_size)]


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _start(job: Path, rank: int) -> subprocess.Popen[bytes]:
    environment = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"} | dict(os.environ)
    command = [sys.executable, "-W", "ignore", "-m", "slime.testing.ranks", str(job), str(rank)]
    with (job / f"log{rank}").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> str:
    """Empty when every rank ended well; otherwise what went wrong first."""
    while any(process.poll() is None for process in processes):
        if failure := _first_failure(processes):
            return failure
        if time.monotonic() > deadline:
            _print_stacks(processes)
            return f"rank {[rank for rank, p in enumerate(processes) if p.poll() is None]} still ran at the time limit"
        time.sleep(0.02)
    return _first_failure(processes)


def _first_failure(processes: list[subprocess.Popen[bytes]]) -> str:
    failed = [f"rank {rank} ended with {p.returncode}" for rank, p in enumerate(processes) if p.poll()]
    return "; ".join(failed)


def _print_stacks(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGUSR1)
    time.sleep(_SECONDS_TO_PRINT_STACKS)


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    """End every session, helper processes of ranks that already ended included."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _log(job: Path, rank: int) -> str:
    return f"--- rank {rank}\n{(job / f'log{rank}').read_text(errors='replace')[-6000:]}"


def _load(module: str, file: str, qualname: str) -> Callable[..., Any]:
    """The function, its module imported from its file: a test module is not always on the path."""
    module = module.replace("__main__", "__ranks_main__")
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None, f"{file} is not a Python file"
        assert spec.loader is not None, f"{file} is not a Python file"
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    found: Any = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _main(job: Path, rank: int) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    header = pickle.loads((job / "job").read_bytes())
    target, args, world_size, port, path = header
    sys.path[:] = path
    where = Rank(rank, world_size, "127.0.0.1", port)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": where.master_addr, "MASTER_PORT": str(port)}
    result = _load(*target)(where, *args)
    (job / f"result{rank}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    from slime.testing import ranks  # what a rank pickles must be found under this name, not as `__main__`

    ranks._main(Path(sys.argv[1]), int(sys.argv[2]))
