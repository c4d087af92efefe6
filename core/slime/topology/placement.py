"""Which host and devices every trainer rank and engine process gets; `slime.cluster.placement` reserves them so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from slime.config.schema import ClusterConfig, RolloutConfig
from slime.errors import SlimeError
from slime.topology.engines import EngineGroup

SAVER = "enable_memory_saver"
"""SGLang's field by which an engine can give its memory up, and so takes turns with a trainer."""

BY_TURNS = {f"rollout.sglang.{SAVER}": True}
"""The key that says so, of a run whose engines share devices with trainers."""


@dataclass(frozen=True)
class HostDevices:
    """`devices` of host `node`, numbered from 0; empty for an engine on cpu, which takes no trainer slot."""

    node: int
    devices: range

    def __str__(self) -> str:
        last = f"-{self.devices[-1]}" if len(self.devices) > 1 else ""
        return f"node {self.node}" + (f" device {self.devices[0]}{last}" if self.devices else "")


ENGINE = "engine-"
"""How the names of engines' processes begin."""


def process_name(engine: int, node_rank: int) -> str:
    """The name of an engine's process, its log and its stacks: `engine-0`, and `engine-0-node1` on a second host."""
    return f"{ENGINE}{engine}-node{node_rank}" if node_rank else f"{ENGINE}{engine}"


def trainer_places(cluster: ClusterConfig) -> list[HostDevices]:
    """Ranks fill hosts in rank order, so that tensor parallelism stays inside a host."""
    return [_place(cluster, rank, 1) for rank in range(cluster.num_trainers)]


def engine_places(
    cluster: ClusterConfig, groups: Sequence[EngineGroup], frozen: Sequence[EngineGroup]
) -> list[tuple[HostDevices, ...]]:
    """The places of every engine's processes, one process a host, in the order of SGLang's `node_rank`; frozen ones
    last, which share devices with nobody.

    Engines follow the trainers, or share their devices when colocated. One that fits a host stays on one.
    """
    shared, alone = (_sizes(groups), _sizes(frozen)) if cluster.colocated else ([], _sizes((*groups, *frozen)))
    if not cluster.on_gpus:
        return list(_cpu_places(cluster, shared + alone))
    starts = [*_starts(cluster, 0, shared), *_starts(cluster, cluster.num_trainers, alone)]
    return [_over_hosts(cluster, start, size) for start, size in zip(starts, shared + alone, strict=True)]


def num_hosts(cluster: ClusterConfig, devices_per_engine: int) -> int:
    """Hosts that an engine of this size takes, and processes that it has."""
    return -(-devices_per_engine // cluster.devices_per_node)


def engine_ranks(cluster: ClusterConfig, groups: Sequence[EngineGroup]) -> list[range]:
    """Colocated: the trainer ranks beside each engine, in the order of its tensor-parallel ranks."""
    sizes = _sizes(groups)
    return [range(start, start + size) for start, size in zip(_starts(cluster, 0, sizes), sizes, strict=True)]


def _sizes(groups: Sequence[EngineGroup]) -> list[int]:
    return [group.devices_per_engine for group in groups for _ in range(group.num_engines)]


def _starts(cluster: ClusterConfig, first: int, sizes: list[int]) -> list[int]:
    """The first device of every engine, counted over all hosts."""
    per_node, starts = cluster.devices_per_node, []
    for size in sizes:
        if size > per_node - first % per_node and first % per_node:
            first += per_node - first % per_node
        starts.append(first)
        first += size
    return starts


def _over_hosts(cluster: ClusterConfig, first: int, size: int) -> tuple[HostDevices, ...]:
    per_node = cluster.devices_per_node
    if size <= per_node:
        return (_place(cluster, first, size),)
    return tuple(
        _place(cluster, start, min(per_node, first + size - start)) for start in range(first, first + size, per_node)
    )


def _cpu_places(cluster: ClusterConfig, sizes: list[int]) -> Iterator[tuple[HostDevices, ...]]:
    """Engines take hosts in turn; one with more ranks than a host has slots takes several."""
    node = 0
    for size in sizes:
        hosts = num_hosts(cluster, size)
        yield tuple(HostDevices((node + rank) % cluster.num_nodes, range(0)) for rank in range(hosts))
        node += hosts


def _place(cluster: ClusterConfig, first: int, count: int) -> HostDevices:
    node, device = divmod(first, cluster.devices_per_node)
    return HostDevices(node, range(device, device + count))


def placement_problems(
    cluster: ClusterConfig, groups: Sequence[EngineGroup], frozen: Sequence[EngineGroup] = ()
) -> Iterator[SlimeError]:
    """Whether trainers and engines fit the devices. Asked of groups without `role_problems` and `span_problems`."""
    if cluster.on_gpus and cluster.colocated and groups:
        yield from _adds_up(cluster, groups)
    yield from size_problems(cluster, groups, frozen)


def size_problems(
    cluster: ClusterConfig, groups: Sequence[EngineGroup], frozen: Sequence[EngineGroup] = ()
) -> Iterator[SlimeError]:
    """Whether the cluster has as many devices as the run takes. Asked of groups without `role_problems`."""
    have, engines = cluster.num_nodes * cluster.devices_per_node, sum(group.devices for group in groups)
    beside = sum(group.devices for group in frozen) if cluster.on_gpus else 0
    if not cluster.on_gpus or (cluster.colocated and groups):
        need, parts = cluster.num_trainers, "one for each trainer rank"
    else:
        need = cluster.num_trainers + engines
        parts = f"{cluster.num_trainers} trainer ranks and {engines} engine devices"
    if beside:
        need, parts = need + beside, f"{parts}, and {beside} of frozen engines"
    if need > have:
        where = f"cluster {cluster.name} has {cluster.num_nodes} x {cluster.devices_per_node} devices"
        enough = -(-need // cluster.devices_per_node)
        todo = f"Set cluster.num_nodes={enough}, or lower cluster.num_trainers or rollout.engines.*.devices."
        yield SlimeError(f"the run needs {need} ({parts})", where=where, todo=todo)


def turn_problems(cluster: ClusterConfig, rollout: RolloutConfig) -> Iterator[SlimeError]:
    """Whether who sets SGLang's memory saver sets it for all engines, and where it decides something."""
    for name, group in rollout.engines.items():
        if SAVER in group.sglang:
            where, todo = f"rollout.engines.{name}.sglang.{SAVER}", f"Set rollout.sglang.{SAVER}."
            yield SlimeError("is one for all engines, which share devices or do not", where=where, todo=todo)
    if SAVER in rollout.sglang and not cluster.colocated:
        todo = "Remove it, or set cluster.placement=colocated."
        what = "would do nothing: engines have devices of their own"
        yield SlimeError(what, where=f"rollout.sglang.{SAVER}", todo=todo)


def idle_devices(cluster: ClusterConfig, places: Collection[HostDevices]) -> Iterator[SlimeError]:
    """Devices, on cpu hosts, that the run holds and uses for nothing. The `places` of all processes fit the devices."""
    per_node = cluster.devices_per_node
    hosts = max(place.node for place in places) + 1
    used = {(place.node, device) for place in places for device in place.devices}
    if hosts < cluster.num_nodes:
        what = f"{cluster.num_nodes - hosts} of {cluster.num_nodes} hosts have nothing to do"
        yield SlimeError(what, where="cluster.num_nodes", todo=f"Set cluster.num_nodes={hosts}, or use them.")
    if cluster.on_gpus and (idle := hosts * per_node - len(used)):
        what = f"{idle} of {hosts * per_node} devices have nothing to do"
        todo = f"Raise it from {cluster.num_trainers}, or the engines' devices; else others may take those devices."
        yield SlimeError(what, where="cluster.num_trainers", todo=todo)


def span_problems(cluster: ClusterConfig, groups: Iterable[EngineGroup]) -> Iterator[SlimeError]:
    """Whether every engine of more than one host takes whole hosts, and has as many. Asked as `placement_problems`."""
    for group in groups:
        per_node, size = cluster.devices_per_node, group.devices_per_engine
        hosts, where = num_hosts(cluster, size), f"rollout.engines.{group.name}.devices_per_engine"
        if hosts > cluster.num_nodes:
            todo = f"Use at most {per_node * cluster.num_nodes}."
            yield SlimeError(f"an engine needs {size} devices, which are {hosts} hosts", where=where, todo=todo)
        elif size > per_node and size % per_node:
            what = f"is {size}: an engine over several hosts takes all {per_node} of each"
            todo = f"Use {size // per_node * per_node} or {hosts * per_node}, or at most {per_node}."
            yield SlimeError(what, where=where, todo=todo)


def _adds_up(cluster: ClusterConfig, groups: Sequence[EngineGroup]) -> Iterator[SlimeError]:
    """Colocated: every device has a trainer rank, which the engine on it takes its weights from, and an engine."""
    engines, trainers = sum(group.devices for group in groups), cluster.num_trainers
    if engines != trainers:
        what = f"engines take {engines} devices and trainers {trainers}, but colocated they share them"
        more = trainers - engines
        fits = (group for group in groups if group.devices + more > 0 == more % group.devices_per_engine)
        ways = [f"rollout.engines.{group.name}.devices={group.devices + more}" for group in fits]
        todo = f"Set {', or '.join(ways)}." if ways else "Give engines and trainers as many devices."
        yield SlimeError(what, where="rollout.engines", todo=todo)
    elif engine_ranks(cluster, groups)[-1].stop > engines:
        todo = f"Use sizes that fill hosts of {cluster.devices_per_node}."
        yield SlimeError("an engine would be cut by the end of a host", where="rollout.engines", todo=todo)
