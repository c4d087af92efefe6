"""Which host and devices every trainer rank and engine process gets; `slime.cluster.placement` reserves them so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from slime.config.schema import Device, Placement, SlimeConfig
from slime.errors import SlimeError
from slime.topology.engines import EngineGroup, engine_groups


@dataclass(frozen=True)
class Place:
    """`devices` of host `node`, numbered from 0; empty for an engine on cpu, which takes no trainer slot."""

    node: int
    devices: range

    def __str__(self) -> str:
        last = f"-{self.devices[-1]}" if len(self.devices) > 1 else ""
        return f"node {self.node}" + (f" device {self.devices[0]}{last}" if self.devices else "")


def process_name(engine: int, node_rank: int) -> str:
    """As an engine's process is called, its log and its stacks: `engine-0`, and `engine-0-node1` on a second host."""
    return f"engine-{engine}-node{node_rank}" if node_rank else f"engine-{engine}"


def shares_gpus(cfg: SlimeConfig) -> bool:
    """Whether a GPU holds a trainer rank and an engine; on cpu and without engines there is nothing to share."""
    colocated = cfg.cluster.device is Device.cuda and cfg.cluster.placement is Placement.colocated
    return colocated and bool(engine_groups(cfg))


def trainer_places(cfg: SlimeConfig) -> list[Place]:
    """Ranks fill hosts in rank order, so that tensor parallelism stays inside a host."""
    return [_place(cfg, rank, 1) for rank in range(cfg.cluster.num_trainers)]


def engine_places(cfg: SlimeConfig) -> list[tuple[Place, ...]]:
    """The places of every engine's processes, one process a host, in the order of SGLang's `node_rank`.

    Engines follow the trainers, or share their devices when colocated. One that fits a host stays on one.
    """
    sizes = [group.devices_per_engine for group in engine_groups(cfg) for _ in range(group.num_engines)]
    if cfg.cluster.device is Device.cpu:
        return list(_cpu_places(cfg, sizes))
    first = 0 if cfg.cluster.placement is Placement.colocated else cfg.cluster.num_trainers
    return [_over_hosts(cfg, start, size) for start, size in zip(_starts(cfg, first, sizes), sizes, strict=True)]


def num_hosts(cfg: SlimeConfig, devices_per_engine: int) -> int:
    """Hosts that an engine of this size takes, and processes that it has."""
    return -(-devices_per_engine // cfg.cluster.devices_per_node)


def num_processes(cfg: SlimeConfig) -> list[int]:
    """Trainer ranks and engines' processes on each host."""
    processes = [*trainer_places(cfg), *(place for places in engine_places(cfg) for place in places)]
    counts = Counter(place.node for place in processes)
    return [counts[node] for node in range(cfg.cluster.num_nodes)]


def engine_ranks(cfg: SlimeConfig) -> list[range]:
    """Colocated: the trainer ranks beside each engine, in the order of its tensor-parallel ranks."""
    sizes = [group.devices_per_engine for group in engine_groups(cfg) for _ in range(group.num_engines)]
    return [range(start, start + size) for start, size in zip(_starts(cfg, 0, sizes), sizes, strict=True)]


def _starts(cfg: SlimeConfig, first: int, sizes: list[int]) -> list[int]:
    """The first device of every engine, counted over all hosts."""
    per_node, starts = cfg.cluster.devices_per_node, []
    for size in sizes:
        if size > per_node - first % per_node and first % per_node:
            first += per_node - first % per_node
        starts.append(first)
        first += size
    return starts


def _over_hosts(cfg: SlimeConfig, first: int, size: int) -> tuple[Place, ...]:
    per_node = cfg.cluster.devices_per_node
    if size <= per_node:
        return (_place(cfg, first, size),)
    return tuple(
        _place(cfg, start, min(per_node, first + size - start)) for start in range(first, first + size, per_node)
    )


def _cpu_places(cfg: SlimeConfig, sizes: list[int]) -> Iterator[tuple[Place, ...]]:
    """Engines take hosts in turn; one with more ranks than a host has slots takes several."""
    node = 0
    for size in sizes:
        hosts = num_hosts(cfg, size)
        yield tuple(Place((node + rank) % cfg.cluster.num_nodes, range(0)) for rank in range(hosts))
        node += hosts


def _place(cfg: SlimeConfig, first: int, count: int) -> Place:
    node, device = divmod(first, cfg.cluster.devices_per_node)
    return Place(node, range(device, device + count))


def placement_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Whether trainers and engines fit the devices. Asked of groups that are right by themselves."""
    groups, cluster = engine_groups(cfg), cfg.cluster
    for group in groups:
        yield from _spans_whole_hosts(cfg, group)
    have, engines = cluster.num_nodes * cluster.devices_per_node, sum(group.devices for group in groups)
    if cluster.device is Device.cpu:
        need, parts = cluster.num_trainers, "one for each trainer rank"
    elif shares_gpus(cfg):
        need, parts = cluster.num_trainers, "one for each trainer rank"
        yield from _adds_up(cfg, engines)
    else:
        need = cluster.num_trainers + engines
        parts = f"{cluster.num_trainers} trainer ranks and {engines} engine devices"
    if need > have:
        where = f"cluster {cluster.name} has {cluster.num_nodes} x {cluster.devices_per_node} devices"
        todo = "Lower cluster.num_trainers or rollout.engines.*.devices, or raise cluster.num_nodes."
        yield SlimeError(f"the run needs {need} ({parts})", where=where, todo=todo)


def _spans_whole_hosts(cfg: SlimeConfig, group: EngineGroup) -> Iterator[SlimeError]:
    per_node, size = cfg.cluster.devices_per_node, group.devices_per_engine
    hosts = num_hosts(cfg, size)
    where = f"rollout.engines.{group.name}.devices_per_engine"
    if hosts > cfg.cluster.num_nodes:
        todo = f"Use at most {per_node * cfg.cluster.num_nodes}."
        yield SlimeError(f"an engine needs {size} devices, which are {hosts} hosts", where=where, todo=todo)
    elif size > per_node and size % per_node:
        todo = f"Use {size // per_node * per_node} or {hosts * per_node}, or at most {per_node}."
        yield SlimeError(
            f"is {size}: an engine over several hosts takes all {per_node} of each", where=where, todo=todo
        )


def _adds_up(cfg: SlimeConfig, engines: int) -> Iterator[SlimeError]:
    """Colocated: every device has a trainer rank, which the engine on it takes its weights from, and an engine."""
    ranks = engine_ranks(cfg)
    if engines != cfg.cluster.num_trainers:
        what = f"engines take {engines} devices and trainers {cfg.cluster.num_trainers}, but colocated they share them"
        yield SlimeError(
            what, where="rollout.engines", todo=f"Set cluster.num_trainers={engines}, or the devices alike."
        )
    elif ranks[-1].stop > engines:
        todo = f"Use sizes that fill hosts of {cfg.cluster.devices_per_node}."
        yield SlimeError("an engine would be cut by the end of a host", where="rollout.engines", todo=todo)
