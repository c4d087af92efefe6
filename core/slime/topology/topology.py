"""Every process of a run as one value: `slime plan` prints it, the cluster executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.config.schema import Role, SlimeConfig, Transport
from slime.topology.engines import engine_groups
from slime.topology.environment import engine_environment, trainer_environment
from slime.topology.layout import Grid, read_grid
from slime.topology.placement import Place, engine_places, shares_gpus, trainer_places
from slime.topology.server_fields import server_fields
from slime.topology.transport import publishers, transport_of


@dataclass(frozen=True)
class Trainer:
    """One Megatron rank.

    Attributes:
        coordinates: its place in every parallel dimension (`tp`, `cp`, `dp`, `pp`, `etp`, `ep`, `edp`).
        environment: variables that slime sets for it.
    """

    rank: int
    place: Place
    coordinates: Mapping[str, int]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Engine:
    """One SGLang engine.

    Attributes:
        index: over all groups.
        name: `<group>-<number in the group>`.
        nodes: the places of its processes, in the order of SGLang's `node_rank`; the first one serves requests.
        fields: fields of `ServerArgs`, less addresses and `node_rank`.
        environment: variables that slime sets for each of its processes.
        publishers: trainer ranks that hand it weights, as `slime.topology.transport.publishers` says.
    """

    index: int
    name: str
    role: Role
    nodes: tuple[Place, ...]
    fields: Mapping[str, Any]
    environment: Mapping[str, str]
    publishers: range


@dataclass(frozen=True)
class Topology:
    """All processes of a run but the driver and the reward workers, which stand on the driver's host.

    Attributes:
        shares_gpus: each GPU holds a trainer rank and a rank of an engine, which take turns.
        transport: how weights reach the engines, never `auto`.
    """

    grid: Grid
    trainers: tuple[Trainer, ...]
    engines: tuple[Engine, ...]
    shares_gpus: bool
    transport: Transport


def read_topology(cfg: SlimeConfig, *, model_path: Path) -> Topology:
    """The topology of a config without problems.

    Args:
        model_path: the HF folder that engines are told to read `config.json` from.
    """
    grid = read_grid(cfg.cluster.num_trainers, cfg.train.megatron)
    names = [(group, number) for group in engine_groups(cfg) for number in range(group.num_engines)]
    engines = tuple(
        Engine(
            index=index,
            name=f"{group.name}-{number}",
            role=group.role,
            nodes=nodes,
            fields=server_fields(cfg, index, model_path=model_path),
            environment=engine_environment(cfg, group),
            publishers=ranks,
        )
        for index, ((group, number), nodes, ranks) in enumerate(
            zip(names, engine_places(cfg), publishers(cfg), strict=True)
        )
    )
    trainers = tuple(
        Trainer(rank, place, grid.coordinates(rank), trainer_environment(cfg))
        for rank, place in enumerate(trainer_places(cfg))
    )
    return Topology(grid, trainers, engines, shares_gpus(cfg), transport_of(cfg))
