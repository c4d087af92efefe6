"""Every process of a run as one value: `slime plan` prints it, memory is counted by it, the cluster executes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slime.config.schema import ClusterConfig, Role, SlimeConfig, WeightsConfig
from slime.layout import Grid, read_grid
from slime.topology.engines import EngineGroup, engine_groups, frozen_groups, generates, work_in_pairs
from slime.topology.environment import engine_environment, trainer_environment
from slime.topology.placement import SAVER, HostDevices, engine_places, engine_ranks, trainer_places
from slime.topology.quantization import WeightFormat, weight_format
from slime.topology.server_fields import drafts_with_own_layer, server_fields
from slime.topology.transport import IPC, transport_name


@dataclass(frozen=True)
class Trainer:
    """One Megatron rank.

    Attributes:
        coordinates: its place in every parallel dimension (`tp`, `cp`, `dp`, `pp`, `etp`, `ep`, `edp`).
        environment: variables that slime sets for it.
    """

    rank: int
    place: HostDevices
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
        publishers: trainer ranks that hand it weights: those on its own devices, rank i of them to its tensor-parallel
            rank i on whichever host these are; or else rank 0. None if it is frozen.
    """

    index: int
    name: str
    role: Role
    nodes: tuple[HostDevices, ...]
    fields: Mapping[str, Any]
    environment: Mapping[str, str]
    publishers: range


@dataclass(frozen=True)
class Topology:
    """All processes of a run but the driver and the reward workers, which stand on the driver's host.

    What is not asked for is not computed: a search for layouts reads thousands of them.

    Attributes:
        config: what it was read from.
        groups: of equal engines that sample from the trained model; none if the run never samples, or others do.
        frozen: of engines that have models of their own. What is said of engines here is said of those of `groups`,
            unless it names these.
    """

    config: SlimeConfig = field(repr=False)
    groups: tuple[EngineGroup, ...]
    frozen: tuple[EngineGroup, ...] = ()

    @property
    def cluster(self) -> ClusterConfig:
        return self.config.cluster

    @property
    def weights(self) -> WeightsConfig:
        return self.config.weights

    @property
    def generates(self) -> bool:
        return bool(self.groups or self.outside)

    @property
    def outside(self) -> Sequence[str]:
        """`rollout.addresses`, if the run ever samples: `groups` is empty then."""
        return self.config.rollout.addresses if generates(self.config.algo, self.config.eval) else ()

    @property
    def works_in_pairs(self) -> bool:
        return work_in_pairs(self.groups)

    @property
    def drafts(self) -> bool:
        """Whether some engines speculate with the model's own multi-token prediction layer, and so need its weights."""
        return any(drafts_with_own_layer(group.sglang) for group in self.groups)

    @property
    def shares_gpus(self) -> bool:
        """Each GPU holds a trainer rank and a rank of an engine."""
        return self.cluster.on_gpus and self.cluster.colocated and self.generates

    @property
    def takes_turns(self) -> bool:
        """Whether trainers and engines that share devices move out of each other's way, because they do not fit
        together."""
        return self.cluster.colocated and self.generates and self.config.rollout.sglang.get(SAVER) is not False

    @cached_property
    def weight_format(self) -> WeightFormat | None:
        """How engines hold weights; None: as they are trained. Raises SlimeError as `quantization.weight_format`."""
        return weight_format(self.config.model, self.config.rollout)

    @cached_property
    def transport(self) -> str:
        """Name of how weights reach the engines, never `auto`."""
        return transport_name(self.config.weights, self.config.rollout, self.config.cluster)

    @cached_property
    def grid(self) -> Grid:
        """Raises SlimeError where the parallel sizes do not divide."""
        return read_grid(self.cluster.num_trainers, self.config.train.megatron)

    @cached_property
    def group_of_engine(self) -> tuple[EngineGroup, ...]:
        return tuple(group for group in self.groups for _ in range(group.num_engines))

    @cached_property
    def group_of_frozen(self) -> tuple[EngineGroup, ...]:
        return tuple(group for group in self.frozen for _ in range(group.num_engines))

    @cached_property
    def engine_ranks(self) -> list[range]:
        return engine_ranks(self.cluster, self.groups)

    @cached_property
    def trainer_places(self) -> list[HostDevices]:
        return trainer_places(self.cluster)

    @cached_property
    def engine_places(self) -> list[tuple[HostDevices, ...]]:
        """The places of every engine's processes, frozen ones' last."""
        return engine_places(self.cluster, self.groups, self.frozen)

    @property
    def places(self) -> list[HostDevices]:
        return [*self.trainer_places, *(place for places in self.engine_places for place in places)]

    @property
    def num_processes(self) -> list[int]:
        """Processes on each host; a spare one has room for those of any."""
        found = Counter(place.node for place in self.places)
        counts = [found[node] for node in range(self.cluster.num_nodes)]
        return counts + [max(counts)] * self.cluster.spares

    @cached_property
    def trainers(self) -> tuple[Trainer, ...]:
        environment = trainer_environment(self.cluster, self.config.train.megatron)
        return tuple(
            Trainer(rank, place, self.grid.coordinates(rank), environment)
            for rank, place in enumerate(self.trainer_places)
        )

    @cached_property
    def every_engine(self) -> tuple[Engine, ...]:
        """All by their indices, frozen ones last."""
        groups = (*self.group_of_engine, *self.group_of_frozen)
        numbers = (number for group in (*self.groups, *self.frozen) for number in range(group.num_engines))
        publishers = self._publishers + [range(0)] * len(self.group_of_frozen)
        return tuple(
            Engine(
                index=index,
                name=f"{group.name}-{number}",
                role=group.role,
                nodes=nodes,
                fields=server_fields(self.config, group, index),
                environment=engine_environment(self.cluster, group),
                publishers=of_engine,
            )
            for index, (group, number, nodes, of_engine) in enumerate(
                zip(groups, numbers, self.engine_places, publishers, strict=True)
            )
        )

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines that are not frozen."""
        return self.every_engine[: len(self.group_of_engine)]

    @property
    def frozen_engines(self) -> tuple[Engine, ...]:
        return self.every_engine[len(self.group_of_engine) :]

    @property
    def _publishers(self) -> list[range]:
        """`Engine.publishers` of each engine that is not frozen."""
        if self.cluster.colocated and self.transport == IPC:
            ranks = self.engine_ranks
            if ranks and ranks[-1].stop <= self.cluster.num_trainers:  # on cpu engines may have more ranks than that
                return ranks
        return [range(1)] * len(self.group_of_engine)


def read_topology(cfg: SlimeConfig) -> Topology:
    """The topology of a config, also of one that does not fit its devices.

    Raises:
        SlimeError: sizes of engine groups contradict each other.
    """
    samples = generates(cfg.algo, cfg.eval)
    frozen = frozen_groups(cfg.cluster, cfg.rollout, generates=samples)
    if not samples or cfg.rollout.addresses:
        return Topology(cfg, (), frozen)
    others = sum(group.devices for group in frozen)
    return Topology(cfg, engine_groups(cfg.cluster, cfg.rollout, cfg.model, cfg.train.megatron, others), frozen)
