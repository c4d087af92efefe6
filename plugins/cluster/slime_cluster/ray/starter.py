"""Ray of a run: one that is there, one that dies with this process, or one that another driver has left."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.algo.stages import reinforces
from slime.cluster.placement import HOST_LABEL
from slime.cluster.ray_starter import TOKEN_PATH, token_file
from slime.config.schema import AlgoConfig, ClusterConfig, RolloutConfig, SftConfig
from slime.engines.limits import longest_of
from slime.errors import SlimeError
from slime.plan.commands import join
from slime.run_config import container
from slime.topology.launcher import Order, RemoteProcess, ThisHost, launcher_of
from slime.topology.topology import Topology
from slime_cluster.ray.folders import ray_folder
from slime_cluster.ray.gpus import require_gpus
from slime_cluster.ray.joining import Hosts
from slime_cluster.ray.left import Record, taken_over
from slime_cluster.ray.node import LeftNode, OwnRay, signals_kept, start_environment, started_our_way
from slime_cluster.ray.reaper import Reaper, reaped

HANGS = 5
"""Times `cluster.start_timeout_s`, which each of Ray's processes has: a start that takes longer hangs in Ray itself."""
SMALL_CALLS_BYTES = 256 * 2**20
"""Room in the object store for everything but batches; weights never pass through it."""
TOKEN_BYTES = 45
"""Bytes of a token in the arrays of `slime.types.MicroBatch`."""
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Read when Ray is imported, or by its processes."""
TOKEN = "RAY_AUTH_TOKEN"
RAYLET_PID = "RAY_RAYLET_PID"


def object_store_bytes(algo: AlgoConfig, rollout: RolloutConfig, sft: SftConfig, max_tokens: int) -> int:
    """Size of a host's object store that holds every share of the largest batch of a step, of micro-batches of at most
    `max_tokens`. Ray takes the memory as objects come; one that it has no room for goes over the disk."""
    reinforced = rollout.prompts_per_step * rollout.samples_per_prompt
    num_tokens = max(
        reinforced * longest_of(rollout, rollout.sampling) if reinforces(algo) else 0,
        sft.batch_size * max_tokens if sft.num_steps else 0,
    )
    return SMALL_CALLS_BYTES + int(1.1 * TOKEN_BYTES * num_tokens)  # sequences are padded


def here(topology: Topology, run: Path | None = None) -> contextlib.AbstractContextManager[LocalRay]:
    """The Ray of `slime.cluster.ray_starter.ray_here`."""
    require_gpus(topology.cluster)
    return _here(topology, run)


@contextlib.contextmanager
def _here(topology: Topology, run: Path | None) -> Iterator[LocalRay]:
    cfg, cluster, mark = topology.config, topology.cluster, secrets.token_hex(4)
    launcher = launcher_of(cluster)
    hosts = launcher.hosts(cluster) if launcher else []
    own = launcher.this_host(cluster) if launcher else None
    processes = topology.num_processes
    num_slots = processes[own.number] if own else sum(processes)
    store = object_store_bytes(cfg.algo, cfg.rollout, cfg.sft, cfg.train.max_tokens_per_micro_batch)
    with contextlib.ExitStack() as stack:
        left: Record | None = None
        if found := run and stack.enter_context(taken_over(run, container(cfg))):
            left, reaper = found
            mark = left.mark
        else:
            reaper = stack.enter_context(reaped(mark))
        started = stack.enter_context(
            ray_cluster(cluster, num_slots, store, own, mark=mark, note=reaper.note, left=left)
        )
        yield LocalRay(mark, store, started, hosts, own, reaper, run, left)


@dataclass(frozen=True)
class LocalRay:
    """A `slime.cluster.ray_starter.RayHere`.

    Attributes:
        store_bytes: size of each host's object store.
        started: what runs on this host.
        hosts: that the launcher brings up, this one among them.
        own: this host among them; None without a launcher.
        left: what another driver of the run in the directory `run` has started.
    """

    mark: str
    store_bytes: int
    started: OwnRay
    hosts: Sequence[str]
    own: ThisHost | None
    reaper: Reaper
    run: Path | None
    left: Record | None

    @property
    def is_left(self) -> bool:
        return self.left is not None

    @contextlib.contextmanager
    def staying(self, seconds: float) -> Iterator[None]:
        if not seconds or not self.run:
            yield
            return
        record = self.left or Record.of(self.mark, self.started.node)
        written = record.write(self.run)
        self.reaper.stay(record.stay(self.run, seconds))
        try:
            yield
        finally:
            self.reaper.stay(None)
            written.unlink(missing_ok=True)

    @contextlib.contextmanager
    def everywhere(self, topology: Topology, logs: Path) -> Iterator[Hosts]:
        cluster = topology.cluster
        is_own, launcher = not cluster.ray_address, launcher_of(cluster)
        if launcher is None:
            yield Hosts([], self.started, is_own=is_own)
            return
        orders = self._orders(topology)
        with contextlib.ExitStack() as stack:

            def begin(*names: str) -> Sequence[RemoteProcess]:
                return stack.enter_context(launcher.run({name: orders[name] for name in names}, logs))

            others = Hosts(begin(*orders), self.started, is_own=is_own, begin=begin)
            others.wait_joined(cluster.start_timeout_s)
            yield others

    def _orders(self, topology: Topology) -> dict[str, Order]:
        """Ray on each of the other hosts."""
        cluster, processes = topology.cluster, topology.num_processes
        limit_s = cluster.start_timeout_s
        return {
            name: Order(
                number=number,
                mark=self.mark,
                environment=ENVIRONMENT | start_environment(limit_s) | {TOKEN: _token()},
                folder="",
                module="slime_cluster.ray.node",
                arguments=[str(limit_s), self.mark, *_join(cluster, number, processes[number], self.store_bytes)],
            )
            for number, name in enumerate(self.hosts)
            if self.own and number != self.own.number
        }


@contextlib.contextmanager
def ray_cluster(
    cluster: ClusterConfig,
    num_slots: int,
    store_bytes: int = SMALL_CALLS_BYTES,
    own: ThisHost | None = None,
    *,
    mark: str = "",
    note: Callable[[str], None] = lambda words: None,
    left: Record | None = None,
) -> Iterator[OwnRay]:
    """Connect to `cluster.ray_address`, or start Ray on this host with `num_slots` logical CPUs on cpu.

    Ray's processes are tied to this one by the kernel (parent-death signal), so none survives a `kill -9` of the
    driver; with `cluster.driver_grace_s` it is the reaper that ends them. Token authentication stays on: a missing
    token is made for a cluster we start. Its logs and sockets lie in a folder that is the user's alone, and go with it.

    Args:
        store_bytes: size of the object store of a Ray that is started.
        own: this host, if others are to join.
        mark: of the run, in the name of that folder.
        note: keeps what is to be said if Ray ends this process.
        left: the Ray to connect to, which ends with the block like one that is started here.

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
    options |= {"namespace": mark} if mark else {}
    here = OwnRay(note)
    with contextlib.ExitStack() as stack:
        if left:
            make_token()
            starting: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            options["address"], todo = left.address, "Start the same command again."
            here.node = node = LeftNode(left.pids, left.ray_logs)
            stack.callback(node.end)
        elif cluster.ray_address:
            starting = contextlib.nullcontext()
            options["address"] = cluster.ray_address
            todo = "Check it and the token in ~/.ray/auth_token, or leave `cluster.ray_address` empty to start Ray."
        else:
            make_token()
            folder = ray_folder(mark)
            stack.callback(shutil.rmtree, folder.parent, ignore_errors=True)
            starting = started_our_way(cluster.start_timeout_s, here, may_stay=bool(cluster.driver_grace_s))
            options |= _of_own(cluster, num_slots, store_bytes, own) | {"_temp_dir": str(folder)}
            todo = "Start the same command again; raise cluster.start_timeout_s if the machine was only slow."
        stack.callback(here.close)
        stack.callback(ray.shutdown)
        stack.enter_context(here.naming_deaths())
        try:
            with (
                starting,
                here.bounded("the start hangs", HANGS * cluster.start_timeout_s),
                signals_kept(here, cluster.start_timeout_s),
            ):
                ray.init(**options)
        except SlimeError:
            raise
        except Exception as error:  # Ray raises these, too
            where = cluster.ray_address or "a new local cluster"
            raise SlimeError(f"Ray did not come up: {error}", where=where, todo=todo) from error
        yield here


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


def make_token() -> None:
    """Make the token by which Ray's processes know each other, where Ray looks for it; one that is there stays.

    Ray itself would make one that everybody on the host can read. Without a home that can be written, as in many
    containers, it stands in the environment, which Ray's processes and the other hosts of this run inherit.
    """
    if TOKEN in os.environ or TOKEN_PATH in os.environ:
        return
    try:
        _make_file(token_file())
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        os.environ[TOKEN] = secrets.token_hex(32)


def _make_file(token: Path) -> None:
    if token.exists():
        return
    token.parent.mkdir(mode=0o700, exist_ok=True)
    made = token.with_name(f".auth_token.{os.getpid()}")
    made.touch(mode=0o600)
    made.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):  # another run was first
        os.link(made, token)
    made.unlink()
