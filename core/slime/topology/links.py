"""Bytes that every link carries when a version is published, as `slime.weights` sends them. No torch.

NCCL broadcasts along a ring, here in rank order: a message passes every link but the one into its sender.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from slime.config.schema import Device, Placement, SlimeConfig, Transport
from slime.models.shapes import Block, Cut, Model
from slime.topology.engine_memory import FP8_BYTES, in_fp8_blocks
from slime.topology.engines import engine_groups
from slime.topology.layout import Grid
from slime.topology.parameters import Weight, copies_embeddings, stages_of
from slime.topology.placement import Place
from slime.topology.server_fields import drafts_with_own_layer
from slime.topology.topology import Topology

DISK = "disk"
"""What versions pass on their way through files."""


class Medium(enum.Enum):
    """What a link is made of."""

    device = "device memory"
    host = "host memory"
    nvlink = "NVLink"
    network = "network"
    disk = "disk"


class Verb(enum.Enum):
    """What a link is for."""

    gather = "gather"
    hand_over = "hand over"


@dataclass(frozen=True)
class Link:
    """One way from a process to another.

    Attributes:
        verb: gather: shards of the trainers become whole tensors; hand over: whole versions reach the engines.
        source: `trainer <rank>`, or `<engine> rank <tensor-parallel rank>`.
    """

    verb: Verb
    source: str
    target: str
    over: Medium
    num_bytes: int


def owned_bytes(
    weights: Sequence[Weight],
    grid: Grid,
    model: Model,
    width: Callable[[Weight], float],
    *,
    replicas: bool = True,
    copies_embeddings: bool = False,
) -> list[int]:
    """Bytes of a version by the trainer rank that speaks for them, the first of equal replicas.

    Owners are the first ranks of a stage: in Megatron's order tensor-parallel ranks are neighbours, and so are those
    that share the experts.

    Args:
        model: Megatron's keywords with `num_layers` and what divides them into stages.
        width: bytes a parameter of a weight, as it travels.
        replicas: count too what every rank holds, which nobody has to send to all.
        copies_embeddings: the last of several stages has a copy of them: with two stages all ranks hold them.
    """
    owned = [0.0] * grid.world_size
    for weight, stage in zip(weights, stages_of(weights, grid, model), strict=True):
        parts = {Cut.whole: 1, Cut.tensor: grid.tp, Cut.expert: grid.ep * grid.etp}[weight.cut]
        holders = 2 if copies_embeddings and weight.block is Block.embedding else 1
        if not replicas and parts == 1 and grid.pp <= holders:
            continue
        first = stage * grid.world_size // grid.pp
        for rank in range(first, first + parts):
            owned[rank] += width(weight) * weight.numel / parts
    return [round(num_bytes) for num_bytes in owned]


def publish_links(cfg: SlimeConfig, topology: Topology, weights: Sequence[Weight], model: Model) -> list[Link]:
    """Every link of a publish: shards to the ranks that serve engines, and whole versions from these to the engines."""
    if not topology.engines:
        return []
    sent, width = _sent(cfg, weights), _width(cfg, model)
    everywhere = topology.transport is Transport.ipc and cfg.cluster.placement is Placement.colocated
    copied = copies_embeddings(cfg, weights, model)
    travels = partial(_width_in_engines, cfg, width)
    owned = owned_bytes(sent, topology.grid, model, travels, replicas=not everywhere, copies_embeddings=copied)
    gathered = _to_all(cfg, topology, owned) if everywhere else _to_first(cfg, topology, owned)
    version = version_bytes(cfg, weights, model)
    return [*(link for link in gathered if link.num_bytes), *_to_engines(cfg, topology, version, everywhere)]


def version_bytes(cfg: SlimeConfig, weights: Sequence[Weight], model: Model) -> int:
    """Of a version as it is published."""
    width = _width(cfg, model)
    return round(sum(_width_in_engines(cfg, width, weight) * weight.numel for weight in _sent(cfg, weights)))


def _sent(cfg: SlimeConfig, weights: Sequence[Weight]) -> list[Weight]:
    drafts = any(drafts_with_own_layer(group.sglang) for group in engine_groups(cfg))
    return [weight for weight in weights if drafts or not weight.drafts]


def _width(cfg: SlimeConfig, model: Model) -> int:
    """Bytes a trained parameter."""
    return 2 if model.get("bf16", cfg.cluster.device is Device.cuda) else 4


def _width_in_engines(cfg: SlimeConfig, width: int, weight: Weight) -> float:
    """Bytes a parameter on its way: shards are quantised before they are gathered."""
    return FP8_BYTES if in_fp8_blocks(cfg, weight) else width


def _to_all(cfg: SlimeConfig, topology: Topology, owned: Sequence[int]) -> Iterator[Link]:
    """A broadcast from every owner, around the ring of all ranks."""
    for source, target in zip(topology.trainers, [*topology.trainers[1:], topology.trainers[0]], strict=True):
        over = _over(cfg, source.place, target.place)
        yield Link(
            Verb.gather, f"trainer {source.rank}", f"trainer {target.rank}", over, sum(owned) - owned[target.rank]
        )


def _to_first(cfg: SlimeConfig, topology: Topology, owned: Sequence[int]) -> Iterator[Link]:
    """A message from every owner to rank 0."""
    first = topology.trainers[0]
    for trainer in topology.trainers[1:]:
        over = _over(cfg, trainer.place, first.place)
        yield Link(Verb.gather, f"trainer {trainer.rank}", "trainer 0", over, owned[trainer.rank])


def _to_engines(cfg: SlimeConfig, topology: Topology, version: int, everywhere: bool) -> Iterator[Link]:
    """Rank by rank on its device; through memory of rank 0's host; to a disk and from there to each host of an engine;
    or around a ring of rank 0 and all engine ranks."""
    if topology.transport is Transport.disk:
        yield Link(Verb.hand_over, "trainer 0", DISK, Medium.disk, version)
        for engine in topology.engines:
            for number, _ in enumerate(engine.nodes):
                yield Link(Verb.hand_over, DISK, f"{engine.name} process {number}", Medium.disk, version)
        return
    before, at = "trainer 0", topology.trainers[0].place
    for name, rank, place in _engine_ranks(topology):
        target = f"{name} rank {rank}"
        if everywhere:
            engine = next(engine for engine in topology.engines if engine.name == name)
            yield Link(Verb.hand_over, f"trainer {engine.publishers[rank]}", target, Medium.device, version)
        elif topology.transport is Transport.ipc:
            yield Link(Verb.hand_over, "trainer 0", target, Medium.host, version)
        else:
            yield Link(Verb.hand_over, before, target, _over(cfg, at, place), version)
            before, at = target, place


def _engine_ranks(topology: Topology) -> Iterator[tuple[str, int, Place]]:
    """Engine, rank and place of every engine rank."""
    for engine in topology.engines:
        per_node = int(engine.fields.get("tp_size", 1)) // len(engine.nodes)
        for rank in range(per_node * len(engine.nodes)):
            yield engine.name, rank, engine.nodes[rank // per_node]


def _over(cfg: SlimeConfig, source: Place, target: Place) -> Medium:
    if source.node != target.node:
        return Medium.network
    return Medium.nvlink if cfg.cluster.device is Device.cuda else Medium.host


def busiest(links: Sequence[Link]) -> dict[tuple[Verb, Medium], int]:
    """Bytes of the link that carries most, of each kind."""
    found: dict[tuple[Verb, Medium], int] = {}
    for link in links:
        kind = link.verb, link.over
        found[kind] = max(found.get(kind, 0), link.num_bytes)
    return found
