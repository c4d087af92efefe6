"""Ray under the run: attach to a cluster that is there, or start one that dies with this process."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.algo.stages import run_stages
from slime.cluster.placement import HOST_LABEL
from slime.cluster.ray_node import RayHere, signals_kept, start_environment, started_our_way
from slime.cluster.reaper import reaped
from slime.cluster.remote_hosts import RemoteHosts, launcher_of
from slime.config.schema import ClusterConfig, SlimeConfig
from slime.engines.limits import longest_of
from slime.engines.scratch import ray_folder
from slime.errors import SlimeError
from slime.plan.commands import join
from slime.topology.launcher import Order, ThisHost
from slime.topology.topology import Topology

SMALL_CALLS_BYTES = 256 * 2**20
"""Of the object store, for everything but batches; weights never pass through it."""
TOKEN_BYTES = 45
"""Of the arrays of `slime.types.MicroBatch`."""
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Read when Ray is imported, or by its processes."""
TOKEN, TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
RAYLET_PID = "RAY_RAYLET_PID"


@dataclass(frozen=True)
class LocalRay:
    """Ray on this host.

    Attributes:
        mark: of the run, in the names of everything temporary.
        hosts: that the launcher brings up, this one among them.
        own: this host among them; None without a launcher.
    """

    mark: str
    hosts: Sequence[str]
    own: ThisHost | None


def object_store_bytes(cfg: SlimeConfig) -> int:
    """Size of a host's object store that holds every share of the largest batch that a step can have.

    Ray takes the memory as objects come. One that it has no room for goes over the disk.
    """
    reinforced = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    num_tokens = max(
        reinforced * longest_of(cfg.rollout, cfg.rollout.sampling) if run_stages(cfg).reinforces else 0,
        cfg.sft.batch_size * cfg.train.max_tokens_per_micro_batch if cfg.sft.num_steps else 0,
    )
    return SMALL_CALLS_BYTES + int(1.1 * TOKEN_BYTES * num_tokens)  # sequences are padded


@contextlib.contextmanager
def ray_here(topology: Topology) -> Iterator[LocalRay]:
    """Ray on this host, for a run of which nothing is on the disk yet. All that is started in the block ends with it.

    Raises:
        SlimeError: Ray does not start, or is not there; this host is none of the launcher's.
    """
    cluster, mark = topology.cluster, secrets.token_hex(4)
    launcher = launcher_of(cluster)
    hosts = launcher.hosts(cluster) if launcher else []
    own = launcher.this_host(cluster) if launcher else None
    processes = topology.num_processes
    num_slots = processes[own.number] if own else sum(processes)
    with (
        reaped(mark) as reaper,
        ray_cluster(cluster, num_slots, object_store_bytes(topology.config), own, mark=mark, note=reaper.note),
    ):
        yield LocalRay(mark, hosts, own)


@contextlib.contextmanager
def ray_everywhere(topology: Topology, here: LocalRay, logs: Path) -> Iterator[RemoteHosts]:
    """Ray on the run's other hosts; yields those that a launcher brought up, which are none without one.

    Args:
        logs: folder of the run directory.

    Raises:
        SlimeError: Ray does not start on some host; each is named.
    """
    cluster, own = topology.cluster, here.own
    launcher = launcher_of(cluster)
    if launcher is None:
        yield RemoteHosts([])
        return
    processes, store = topology.num_processes, object_store_bytes(topology.config)
    orders = {
        name: Order(
            number=number,
            mark=here.mark,
            environment=ENVIRONMENT | start_environment(cluster.start_timeout_s) | {TOKEN: _token()},
            folder="",
            module="slime.cluster.ray_node",
            arguments=[
                str(cluster.start_timeout_s),
                here.mark,
                *_join(cluster, number, processes[number], store),
            ],
        )
        for number, name in enumerate(here.hosts)
        if own and number != own.number
    }
    with launcher.run(orders, logs) as processes_there:
        remote = RemoteHosts(processes_there)
        remote.wait_joined(cluster.start_timeout_s)
        yield remote


@contextlib.contextmanager
def ray_cluster(
    cluster: ClusterConfig,
    num_slots: int,
    store_bytes: int = SMALL_CALLS_BYTES,
    own: ThisHost | None = None,
    *,
    mark: str = "",
    note: Callable[[str], None] = lambda words: None,
) -> Iterator[None]:
    """Connect to `cluster.ray_address`, or start Ray on this host with `num_slots` logical CPUs on cpu.

    A cluster that is there has the object store that it was started with; Ray's default is 30 % of the memory.

    Ray's processes are tied to this one by the kernel (parent-death signal), so none survives a `kill -9` of the
    driver. Token authentication stays on: a missing token is made for a cluster we start. Its logs and sockets lie in
    a folder that is the user's alone, and go with it.

    Args:
        own: this host, if others are to join.
        mark: of the run, in the name of that folder.
        note: keeps what is to be said if Ray ends this process.

    Raises:
        SlimeError: Ray does not start, or is not there, or one of its processes on this host has died.
    """
    patience = {} if cluster.ray_address else start_environment(cluster.start_timeout_s)
    for name, value in (ENVIRONMENT | patience).items():
        os.environ.setdefault(name, value)
    # Where Ray finds the raylet gone it exits without a word, and where process 1 is the parent it takes that to be so.
    os.environ[RAYLET_PID] = str(os.getpid())
    import ray

    # The workers import this checkout and the environment's plugins by the paths of the driver.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    here = RayHere(note)
    with contextlib.ExitStack() as stack:
        if cluster.ray_address:
            starting: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            options["address"] = cluster.ray_address
            todo = "Check it and the token in ~/.ray/auth_token, or leave `cluster.ray_address` empty to start Ray."
        else:
            make_token()
            folder = ray_folder(mark)
            stack.callback(shutil.rmtree, folder.parent, ignore_errors=True)
            starting = started_our_way(cluster.start_timeout_s, here)
            options |= _of_own(cluster, num_slots, store_bytes, own) | {"_temp_dir": str(folder)}
            todo = "Start the same command again; raise cluster.start_timeout_s if the machine was only slow."
        stack.callback(here.close)
        stack.callback(ray.shutdown)
        stack.enter_context(here.naming_deaths())
        try:
            with starting, signals_kept():
                ray.init(**options)
        except SlimeError:
            raise
        except Exception as error:  # Ray raises these, too
            where = cluster.ray_address or "a new local cluster"
            raise SlimeError(f"Ray did not come up: {error}", where=where, todo=todo) from error
        here.is_up = True
        yield


def _of_own(cluster: ClusterConfig, num_slots: int, store_bytes: int, own: ThisHost | None) -> dict[str, Any]:
    """Options of `ray.init` that starts Ray here."""
    # Without "local" Ray would join whatever cluster $RAY_ADDRESS or the host's last `ray start` names.
    options = {"address": "local", "include_dashboard": False, "object_store_memory": store_bytes}
    if not cluster.on_gpus:
        options["num_cpus"] = num_slots
    elif own:
        options["num_gpus"] = cluster.devices_per_node
    if own and own.address:
        options |= {"_node_ip_address": own.address, "labels": {HOST_LABEL: str(own.number)}}
    return options


def _join(cluster: ClusterConfig, number: int, num_slots: int, store_bytes: int) -> list[str]:
    """Arguments of `ray` on host `number`."""
    import ray

    command = join(cluster, ray.get_runtime_context().gcs_address, num_slots)
    return [*command, f"--object-store-memory={store_bytes}", f"--labels={HOST_LABEL}={number}", "--block"]


def _token() -> str:
    """The one that Ray found here, in the order in which it looks."""
    if TOKEN in os.environ:
        return os.environ[TOKEN]
    return token_file().read_text().strip()


def token_file() -> Path:
    """Where Ray looks for its token if the environment does not hold it."""
    return Path(os.environ.get(TOKEN_PATH) or Path.home() / ".ray/auth_token").expanduser()


def make_token() -> None:
    """The token by which Ray's processes know each other, where Ray looks for it; one that is there stays.

    Ray itself would make one that everybody on the host can read.
    """
    token = token_file()
    if TOKEN in os.environ or TOKEN_PATH in os.environ or token.exists():
        return
    token.parent.mkdir(mode=0o700, exist_ok=True)
    made = token.with_name(f".auth_token.{os.getpid()}")
    made.touch(mode=0o600)
    made.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):  # another run was first
        os.link(made, token)
    made.unlink()
