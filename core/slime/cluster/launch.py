"""Ray under the run: attach to a cluster that is there, or start one that dies with this process."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from slime.cluster.host import Order
from slime.cluster.placement import HOST_LABEL
from slime.cluster.reaper import reaped
from slime.cluster.ssh import Sessions, sessions
from slime.config.hostfile import read_hostfile
from slime.config.schema import ClusterConfig, Device, SlimeConfig
from slime.errors import SlimeError
from slime.plan.commands import join
from slime.rollout.limits import longest_of
from slime.topology.placement import num_processes

SMALL_CALLS_BYTES = 256 * 2**20
"""Of the object store, for everything but batches; weights never pass through it."""
TOKEN_BYTES = 45
"""Of the arrays of `slime.types.MicroBatch`."""
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Read when Ray is imported, or by its processes."""
TOKEN, TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_NOWHERE = 9
"""A port to name where nothing is sent."""


@dataclass(frozen=True)
class Own:
    """This host among those of a hostfile.

    Attributes:
        number: of its line, counted from 0.
        address: at which the others reach it; empty if there are none.
    """

    number: int
    address: str


@dataclass(frozen=True)
class Here:
    """Ray on this host.

    Attributes:
        mark: of the run, in the names of everything temporary.
        hosts: of the hostfile, this one among them.
        own: this host among them; None without a hostfile.
    """

    mark: str
    hosts: Sequence[str]
    own: Own | None


def object_store_bytes(cfg: SlimeConfig) -> int:
    """Size of a host's object store that holds every share of the largest batch that a step can have.

    Ray takes the memory as objects come. One that it has no room for goes over the disk.
    """
    reinforced = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    num_tokens = max(
        reinforced * longest_of(cfg.rollout, cfg.rollout.sampling) if cfg.algo.name != "sft" else 0,
        cfg.sft.batch_size * cfg.train.max_tokens_per_micro_batch if cfg.sft.num_steps else 0,
    )
    return SMALL_CALLS_BYTES + int(1.1 * TOKEN_BYTES * num_tokens)  # sequences are padded


@contextlib.contextmanager
def ray_here(cfg: SlimeConfig) -> Iterator[Here]:
    """Ray on this host, for a run of which nothing is on the disk yet. All that is started in the block ends with it.

    Raises:
        SlimeError: Ray does not start, or is not there; this host is none of the hostfile's.
    """
    cluster, mark = cfg.cluster, secrets.token_hex(4)
    hosts = read_hostfile(cluster.hostfile) if cluster.hostfile else []
    own = find_own(hosts, cluster) if hosts else None
    processes = num_processes(cfg)
    num_slots = processes[own.number] if own else sum(processes)
    with reaped(mark), ray_cluster(cluster, num_slots, object_store_bytes(cfg), own):
        yield Here(mark, hosts, own)


@contextlib.contextmanager
def ray_everywhere(cfg: SlimeConfig, here: Here, logs: Path) -> Iterator[Sessions]:
    """Ray on the run's other hosts; yields those that were brought up over ssh, which are none without a hostfile.

    Args:
        logs: folder of the run directory.

    Raises:
        SlimeError: Ray does not start on some host; each is named.
    """
    own, processes, store = here.own, num_processes(cfg), object_store_bytes(cfg)
    orders = {
        name: Order(
            number=number,
            mark=here.mark,
            environment=ENVIRONMENT | {TOKEN: _token()},
            folder="",
            module="ray.scripts.scripts",
            arguments=_join(cfg.cluster, number, processes[number], store),
        )
        for number, name in enumerate(here.hosts)
        if own and number != own.number
    }
    with sessions(orders, logs) as running:
        running.wait_joined(cfg.cluster.start_timeout_s)
        try:
            yield running
        finally:
            if orders:
                _disconnect()


def _disconnect() -> None:
    """Before the other hosts end: Ray prints to the driver's terminal that their raylets died, if they tell in time."""
    import ray

    ray.shutdown()


@contextlib.contextmanager
def ray_cluster(
    cluster: ClusterConfig, num_slots: int, store_bytes: int = SMALL_CALLS_BYTES, own: Own | None = None
) -> Iterator[None]:
    """Connect to `cluster.ray_address`, or start Ray on this host with `num_slots` logical CPUs on cpu.

    A cluster that is there has the object store that it was started with; Ray's default is 30 % of the memory.

    Ray's processes are tied to this one by the kernel (parent-death signal), so none survives a `kill -9` of the
    driver. Token authentication stays on: a missing token is made for a cluster we start.

    Args:
        own: this host, if others are to join.

    Raises:
        SlimeError: Ray does not start, or is not there.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    # The workers import this checkout and the environment's plugins by the paths of the driver.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if cluster.ray_address:
        options["address"] = cluster.ray_address
    else:
        make_token()
        # Without "local" Ray would join whatever cluster $RAY_ADDRESS or the host's last `ray start` names.
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": store_bytes}
        if cluster.device is Device.cpu:
            options["num_cpus"] = num_slots
        elif own:
            options["num_gpus"] = cluster.devices_per_node
        if own and own.address:
            options |= {"_node_ip_address": own.address, "labels": {HOST_LABEL: str(own.number)}}
    try:
        with _without_onlookers():
            ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = cluster.ray_address or "a new local cluster"
        todo = (
            "Check `cluster.ray_address` and the token in ~/.ray/auth_token, or leave the address empty to start Ray."
        )
        raise SlimeError(f"Ray did not come up: {error}", where=where, todo=todo) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _without_onlookers() -> Iterator[None]:
    """Ray that is started in the block has no dashboard, autoscaler or log monitor.

    A run uses none of them. Each is a Python process, and `ray.init` waits for the dashboard's even where it is told to
    do without: half of Ray's start. It has no other way to say so.
    """
    from ray._private import node

    class Node(node.Node):  # type: ignore[misc]
        def start_api_server(self, **_: object) -> None:
            self._webui_url = ""

        def start_monitor(self) -> None: ...

        def start_log_monitor(self) -> None: ...

    whole, node.Node = node.Node, Node
    try:
        yield
    finally:
        node.Node = whole


def _join(cluster: ClusterConfig, number: int, num_slots: int, store_bytes: int) -> list[str]:
    """Arguments of `ray` on host `number`."""
    import ray

    command = join(cluster, ray.get_runtime_context().gcs_address, num_slots)
    return [*command, f"--object-store-memory={store_bytes}", f"--labels={HOST_LABEL}={number}", "--block"]


def find_own(hosts: Sequence[str], cluster: ClusterConfig) -> Own:
    """This host in the hostfile.

    Raises:
        SlimeError: it is not among them, or it is not clear at which address the others reach it.
    """
    where = str(cluster.hostfile)
    mine = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    for number, host in enumerate(map(_bare, hosts)):
        found = _addresses(host)
        if host not in (socket.gethostname(), socket.getfqdn()) and not (found & mine) and not any(map(_loops, found)):
            continue
        if len(hosts) == 1:
            return Own(number, "")
        # Debian gives a host's own name the address 127.0.1.1.
        reachable = sorted(address for address in found & mine if not _loops(address))
        others = [_bare(other) for other in hosts if _bare(other) != host]
        if address := next(iter(reachable), None) or _seen_from(others):
            return Own(number, address)
        what = f"'{host}' is this host, but not the address at which the others reach it"
        raise SlimeError(what, where=where, todo=f"Write that address in place of '{host}'.")
    todo = f"Start slime on one of them, or write '{socket.gethostname()}' into the file."
    raise SlimeError(f"none of {', '.join(hosts)} is this host", where=where, todo=todo)


def _bare(host: str) -> str:
    """Without the user and port that ssh takes: `user@host`, `ssh://user@host:port`."""
    return urlsplit(host).hostname or host if host.startswith("ssh://") else host.rpartition("@")[2]


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:  # a name of ~/.ssh/config alone
        return set()


def _loops(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _seen_from(others: Sequence[str]) -> str | None:
    """The address from which this host would write to another one; nothing is sent."""
    for address in (address for other in others for address in _addresses(other)):
        with contextlib.suppress(OSError), socket.socket(_family(address), socket.SOCK_DGRAM) as route:
            route.connect((address, _NOWHERE))
            return str(route.getsockname()[0])
    return None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _token() -> str:
    """The one that Ray found here, in the order in which it looks."""
    if TOKEN in os.environ:
        return os.environ[TOKEN]
    return Path(os.environ.get(TOKEN_PATH) or _token_file()).expanduser().read_text().strip()


def _token_file() -> Path:
    return Path.home() / ".ray/auth_token"


def make_token() -> None:
    """The token by which Ray's processes know each other, where Ray looks for it; one that is there stays.

    Ray itself would make one that everybody on the host can read.
    """
    token = _token_file()
    if TOKEN in os.environ or TOKEN_PATH in os.environ or token.exists():
        return
    token.parent.mkdir(mode=0o700, exist_ok=True)
    made = token.with_name(f".auth_token.{os.getpid()}")
    made.touch(mode=0o600)
    made.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):  # another run was first
        os.link(made, token)
    made.unlink()
