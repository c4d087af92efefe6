"""Runs a part of a conversion on the ranks of a Megatron layout: torchrun's, or processes started here."""

from __future__ import annotations

import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from slime.errors import SlimeError
from slime.imports import absent, importing
from slime.lifetime import end_with_parent
from slime.net import LOOPBACK, join_store, serve_store
from slime_tools.convert.layout import Layout

PATIENCE = timedelta(days=30)
"""How long a rank waits for the others, which write files of any size."""
_POLL_S = 0.5


def under_torchrun() -> bool:
    """Whether this process is one of torchrun's."""
    return "RANK" in os.environ


def here(function: Callable[..., None], *args: Any) -> None:
    """Call `function(rank, world_size, store, *args)` as the rank of torchrun's that this process is."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    function(rank, world_size, torchruns_store(), *args)


def torchruns_store() -> Any:
    """In which the processes of torchrun, of which this is one, tell each other things."""
    environment = os.environ
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    if environment["RANK"] == "0" and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return serve_store(address, port, PATIENCE)
    return join_store(address, port, PATIENCE)


def started(function: Callable[..., None], world_size: int, progress: Callable[[], None], *args: Any) -> None:
    """Call `function(rank, world_size, store, *args)` in as many processes of this host.

    Args:
        progress: called now and then.

    Raises:
        SlimeError: a rank raised it, or was killed.
    """
    context = get_context("spawn")
    store = serve_store(LOOPBACK, 0, PATIENCE)
    job = pickle.dumps((function, args))
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=_run, args=(pipe, os.getpid(), rank, world_size, store.port, job))
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, pipe in pipes:
        pipe.close()
    try:
        while any(process.exitcode is None for process in processes):
            for rank, (process, (result, _)) in enumerate(zip(processes, pipes, strict=True)):
                _check(rank, process, result)
            progress()
            time.sleep(_POLL_S)
        for rank, (process, (result, _)) in enumerate(zip(processes, pipes, strict=True)):
            _check(rank, process, result)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _check(rank: int, process: Any, result: Connection) -> None:
    ended = process.exitcode  # asked first: what a rank said before its end is there by now
    if result.poll():
        with suppress(EOFError):
            raise result.recv()
    if ended:
        what = f"rank {rank} of the conversion ended with {ended}"
        todo = "See what it printed; too little memory? Run the same command again: it goes on from here."
        raise SlimeError(what, todo=todo)


def _run(pipe: Connection, parent: int, rank: int, world_size: int, port: int, job: bytes) -> None:
    end_with_parent(parent)
    warnings.filterwarnings("ignore", module=r"megatron\.")  # what it would rather have installed
    with importing(), absent("wandb"):
        function, args = pickle.loads(job)
    try:
        function(rank, world_size, join_store(LOOPBACK, port, PATIENCE), *args)
    except SlimeError as error:
        pipe.send(error)
        signal.pause()  # until it is killed: were it to end, the others would print what they miss of it


def world_size_of(layout: Layout, processes: int) -> int:
    """Ranks to start: a multiple of what the layout needs, near the number of processes."""
    least = layout.num_ranks
    return max(1, processes // least) * least
