"""Runs a function on several ranks of this machine, one process a rank, and never hangs.

Without CUDA the processes are forked from a server that has imported torch, Megatron-core and transformers once and
holds no thread: an import costs more than most tests. Each is a session of its own, so that killing a rank takes the
helper processes of a checkpoint along. A rank that is late prints the stack of every thread before it is killed.
"""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from slime.imports import import_file
from slime.lifetime import end_with_parent
from slime_testing.patience import Patience

_SECONDS_TO_PRINT_STACKS = 1.0
_ENVIRONMENT: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
"""Of every rank, where the caller's environment does not say otherwise."""

_MEETINGS = itertools.count(1)


class Rank(NamedTuple):
    """Where a process stands; `*rank` are the last four arguments of `slime_megatron.train.megatron.initialize`.

    The ranks meet by a file: a port that was free when it was chosen may be another's when they listen there.
    """

    rank: int
    world_size: int
    master_addr: str
    master_port: int = 0

    def again(self) -> Rank:
        """For this process's next group, since a file is good for one; every rank calls it equally often."""
        return self._replace(master_addr=str(Path(self.master_addr).with_name(f"meeting{next(_MEETINGS)}")))


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60) -> list[Any]:
    """Call `function(Rank(...), *args)` in `world_size` processes and return what each rank returned, by rank.

    Args:
        function: a module-level function; its file is imported again in every rank.
        world_size: number of processes.
        *args: picklable arguments, the same for every rank.
        timeout_s: seconds for the slowest rank, imports included; less those for which it had no core.

    Raises:
        AssertionError: a rank raised, died or was late; with the traceback or the stacks of every rank.
    """
    target = (function.__module__, sys.modules[function.__module__].__file__, function.__qualname__)
    context = _context()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = Path(folder)
        (job / "job").write_bytes(pickle.dumps((target, args, sys.path, dict(os.environ))))
        ranks = [Rank(rank, world_size, str(job / "meeting")) for rank in range(world_size)]
        processes = [context.Process(target=_run, args=(job, rank)) for rank in ranks]
        for process in processes:
            process.start()
        try:
            failure = _wait(processes, Patience(timeout_s, lambda: map(_pid, processes)))
        finally:
            _kill(processes)
        assert not failure, f"{failure}\n" + "\n".join(_log(job, rank) for rank in range(world_size))
        return [pickle.loads((job / f"result{rank}").read_bytes()) for rank in range(world_size)]


def _context() -> SpawnContext | ForkServerContext:
    """How ranks come to be; CUDA does not survive a fork."""
    import torch

    if torch.cuda.device_count():
        return multiprocessing.get_context("spawn")
    _serve_forks()
    return multiprocessing.get_context("forkserver")


def _serve_forks() -> None:
    """Start the server, unless it runs; torch reads the environment as it is imported."""
    multiprocessing.set_forkserver_preload(["slime_testing.preloaded"])
    before = dict(os.environ)
    os.environ.update({**_ENVIRONMENT, **before})
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _wait(processes: Sequence[BaseProcess], patience: Patience) -> str:
    """Empty when every rank ended well; otherwise what went wrong first."""
    while any(process.exitcode is None for process in processes):
        if failure := _first_failure(processes):
            return failure
        if patience.is_over():
            _print_stacks(processes)
            late = [rank for rank, process in enumerate(processes) if process.exitcode is None]
            return f"rank {late} still ran at the time limit"
        time.sleep(0.02)
    return _first_failure(processes)


def _first_failure(processes: Sequence[BaseProcess]) -> str:
    failed = [
        f"rank {rank} ended with {process.exitcode}" for rank, process in enumerate(processes) if process.exitcode
    ]
    return "; ".join(failed)


def _print_stacks(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.exitcode is None:
            with suppress(ProcessLookupError):  # it ends just now
                os.kill(_pid(process), signal.SIGUSR1)
    time.sleep(_SECONDS_TO_PRINT_STACKS)


def _kill(processes: Sequence[BaseProcess]) -> None:
    """End every session, helper processes of ranks that already ended included."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(_pid(process), signal.SIGKILL)
        process.kill()  # it may not have had the time to open its session
        process.join()


def _pid(process: BaseProcess) -> int:
    assert process.pid is not None, "started"
    return process.pid


def _log(job: Path, rank: int) -> str:
    file = job / f"log{rank}"  # of a rank that got no core there is none
    return f"--- rank {rank}\n{file.read_text(errors='replace')[-6000:] if file.exists() else ''}"


def _load(module: str, file: str, qualname: str) -> Callable[..., Any]:
    """The function, its module imported from its file: a test module is not always on the path."""
    module = module.replace("__main__", "__ranks_main__")
    if module not in sys.modules:
        import_file(Path(file), module)
    found: Any = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _run(job: Path, rank: Rank) -> None:
    """A rank's whole life, in the forked process."""
    os.setsid()
    end_with_parent()
    with (job / f"log{rank.rank}").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    target, args, path, environment = pickle.loads((job / "job").read_bytes())
    sys.path[:] = path
    os.environ.clear()
    os.environ |= _ENVIRONMENT | environment | {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.rank)}
    os.environ["WORLD_SIZE"] = str(rank.world_size)
    result = _load(*target)(rank, *args)
    (job / f"result{rank.rank}").write_bytes(pickle.dumps(result))
