"""Bytes that every link carries when a version is published, as `slime.weights` sends them. No torch.

NCCL broadcasts along a ring, here in rank order: a message passes every link but the one into its sender.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from slime.layout import Grid
from slime.models.shapes import Block, Cut, Model
from slime.sizes.parameters import Weight, copies_embeddings, stages_of
from slime.sizes.version import bytes_a_weight, is_quantized, sent, version_bytes, width
from slime.topology.links import Link, Medium, Verb, medium_between
from slime.topology.topology import Topology
from slime.topology.transport import IPC
from slime.weights.transports import transport_of


def owned_bytes(
    weights: Sequence[Weight],
    grid: Grid,
    model: Model,
    travels: Callable[[Weight], float],
    *,
    replicas: bool = True,
    copies_embeddings: bool = False,
) -> list[int]:
    """Bytes of a version by the trainer rank that speaks for them, the first of equal replicas.

    Owners are the first ranks of a stage: in Megatron's order tensor-parallel ranks are neighbours, and so are those
    that share the experts.

    Args:
        model: Megatron's keywords with `num_layers` and what divides them into stages.
        travels: bytes a parameter of a weight, as it travels.
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
            owned[rank] += travels(weight) * weight.numel / parts
    return [round(num_bytes) for num_bytes in owned]


def publish_links(topology: Topology, weights: Sequence[Weight], model: Model) -> list[Link]:
    """Every link of a publish: shards to the ranks that serve engines, and whole versions from these to the engines."""
    if not topology.engines:
        return []
    all_sent = sent(topology, weights)
    everywhere = topology.transport == IPC and topology.cluster.colocated
    copied = copies_embeddings(topology.config.train, weights, model)
    travels = partial(bytes_a_weight, topology.weight_format, trained=width(topology, model))
    owned = owned_bytes(all_sent, topology.grid, model, travels, replicas=not everywhere, copies_embeddings=copied)
    gathered = _to_all(topology, owned) if everywhere else _to_first(topology, owned)
    handed_over = transport_of(topology.transport).links(topology, version_bytes(topology, weights, model))
    return [*(link for link in gathered if link.num_bytes), *handed_over]


def num_tensors(topology: Topology, weights: Sequence[Weight]) -> int:
    """Of a version as it is published, with all parts of what is quantised."""
    form, of_version = topology.weight_format, sent(topology, weights)
    parts = len(form.parts((1, 1))) if form else 1
    return sum(weight.count * weight.num_names * (parts if is_quantized(form, weight) else 1) for weight in of_version)


def _to_all(topology: Topology, owned: Sequence[int]) -> Iterator[Link]:
    """A broadcast from every owner, around the ring of all ranks."""
    for source, target in zip(topology.trainers, [*topology.trainers[1:], topology.trainers[0]], strict=True):
        over = medium_between(topology.cluster, source.place, target.place)
        yield Link(
            Verb.gather, f"trainer {source.rank}", f"trainer {target.rank}", over, sum(owned) - owned[target.rank]
        )


def _to_first(topology: Topology, owned: Sequence[int]) -> Iterator[Link]:
    """A message from every owner to rank 0."""
    first = topology.trainers[0]
    for trainer in topology.trainers[1:]:
        over = medium_between(topology.cluster, trainer.place, first.place)
        yield Link(Verb.gather, f"trainer {trainer.rank}", "trainer 0", over, owned[trainer.rank])


def busiest(links: Sequence[Link]) -> dict[tuple[Verb, Medium], int]:
    """Bytes of the link that carries most, of each kind."""
    found: dict[tuple[Verb, Medium], int] = {}
    for link in links:
        kind = link.verb, link.over
        found[kind] = max(found.get(kind, 0), link.num_bytes)
    return found
