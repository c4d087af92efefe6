"""Which host and device every trainer rank and engine gets, as the run's placement group packs them."""

from __future__ import annotations

from dataclasses import dataclass

from slime.config.schema import Device, Placement, SlimeConfig
from slime.plan.rules import devices_per_engine, num_engines


@dataclass(frozen=True)
class Place:
    """`devices` of host `node`, numbered from 0; empty for an engine on cpu, which takes no trainer slot."""

    node: int
    devices: range

    def __str__(self) -> str:
        last = f"-{self.devices[-1]}" if len(self.devices) > 1 else ""
        return f"node {self.node}" + (f" device {self.devices[0]}{last}" if self.devices else "")


def trainer_places(cfg: SlimeConfig) -> list[Place]:
    """Ranks fill hosts in rank order, so that tensor parallelism stays inside a host."""
    return [_place(cfg, rank, 1) for rank in range(cfg.cluster.num_trainers)]


def engine_places(cfg: SlimeConfig) -> list[Place]:
    """Engines follow the trainers, or share their devices when colocated; none spans two hosts."""
    if cfg.cluster.device is Device.cpu:
        return [Place(engine % cfg.cluster.num_nodes, range(0)) for engine in range(num_engines(cfg))]
    first = 0 if cfg.cluster.placement is Placement.colocated else cfg.cluster.num_trainers
    return [_place(cfg, start, devices_per_engine(cfg)) for start in _engine_starts(cfg, first)]


def engine_ranks(cfg: SlimeConfig) -> list[range]:
    """Colocated: the trainer ranks beside each engine, in the order of its devices."""
    size = devices_per_engine(cfg)
    return [range(start, start + size) for start in _engine_starts(cfg, 0)]


def _engine_starts(cfg: SlimeConfig, first: int) -> list[int]:
    """The first device of every engine, counted over all hosts."""
    size, per_node = devices_per_engine(cfg), cfg.cluster.devices_per_node
    starts = []
    for _ in range(num_engines(cfg)):
        if first % per_node + size > per_node:
            first += per_node - first % per_node
        starts.append(first)
        first += size
    return starts


def _place(cfg: SlimeConfig, first: int, count: int) -> Place:
    node, device = divmod(first, cfg.cluster.devices_per_node)
    return Place(node, range(device, device + count))
