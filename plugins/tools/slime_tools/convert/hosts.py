"""The processes of a conversion: torchrun's, those started here, or torchrun's on each host of a hostfile, by ssh."""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from slime import plugins
from slime.config.schema import ClusterConfig
from slime.errors import SlimeError
from slime.extras import how_to_get
from slime.imports import absent, importing
from slime.lifetime import end_with_parent
from slime.net import LOOPBACK, join_store, reserved_port, serve_store
from slime.topology.launcher import SSH, Order, lost

TORCHRUN = "torch.distributed.run"
PASSED_ON = ("GLOO_SOCKET_IFNAME",)
"""Variables that the other hosts get: the network interface, where gloo takes the wrong one."""
_POLL_S = 0.2


def run_on_hosts(hostfile: str, arguments: Sequence[str], ranks: int) -> None:
    """Run `slime convert <arguments>` in this folder on every host, which sees it by the same path.

    Args:
        hostfile: an address a line, this host's among them.
        ranks: of torchrun on each host.

    Raises:
        SlimeError: the file is wrong, a host is not reached or lost, or the conversion failed.
    """
    launchers, cluster = plugins.load().launchers, ClusterConfig(hostfile=hostfile)
    if SSH not in launchers:
        raise SlimeError("no launcher named 'ssh' is installed", where="--hostfile", todo=how_to_get(f"launcher/{SSH}"))
    from slime_cluster.ray.reaper import reaped  # which the launcher brings

    launcher = launchers.create(SSH)
    hosts, own = launcher.hosts(cluster), launcher.this_host(cluster)
    address = own.address or LOOPBACK
    others = [host for number, host in enumerate(hosts) if number != own.number]
    mark, logs = secrets.token_hex(4), Path(tempfile.mkdtemp(prefix="slime-convert-"))
    common = [f"--nnodes={len(hosts)}", f"--nproc-per-node={ranks}", f"--master-addr={address}"]

    with reserved_port(address) as port:

        def torchrun(node: int) -> list[str]:
            return [*common, f"--master-port={port}", f"--node-rank={node}", "-m", "slime", "convert", *arguments]

        orders = {
            name: Order(
                number=node,
                mark=mark,
                environment={variable: os.environ[variable] for variable in PASSED_ON if variable in os.environ},
                folder=str(Path.cwd()),
                module=TORCHRUN,
                arguments=torchrun(node),
            )
            for node, name in enumerate(others, start=1)
        }
        with reaped(mark), launcher.run(orders, logs) as processes:
            here = subprocess.Popen([sys.executable, "-m", TORCHRUN, *torchrun(0)])
            while here.poll() is None:
                if death := lost(processes, "converting", may_end=True):
                    raise death
                time.sleep(_POLL_S)
            if here.returncode:
                todo = f"See what it printed, and the logs of the other hosts in {logs}."
                raise SlimeError(f"the conversion ended with exit code {here.returncode}", where="this host", todo=todo)
    shutil.rmtree(logs)


PATIENCE = timedelta(days=30)
"""How long a rank waits for the others, which write files of any size."""
_LOOK_S = 0.5


def under_torchrun() -> bool:
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
            time.sleep(_LOOK_S)
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
