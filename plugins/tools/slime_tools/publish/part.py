"""What a plan says of publishing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from slime.config.gpus import gpu_of
from slime.config.keys import value_of
from slime.layout import Grid
from slime.models.shapes import Block, Cut, Model
from slime.sizes.model import ModelSizes
from slime.sizes.parameters import Weight, copies_embeddings, stages_of
from slime.sizes.version import bytes_a_weight, is_quantized, sent, version_bytes, width
from slime.topology.adapters import adapters_beside
from slime.topology.links import Link, Medium, Verb, medium_between
from slime.topology.topology import Topology
from slime.topology.transport import IPC
from slime.topology.transport_protocol import StoringTransport
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
    if not topology.generates:
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


NETWORK = 40e9
"""Bytes/s of a GPU to other hosts, each way: 400 Gb/s less what protocols take."""
LINK = 300 / 450
"""Share of what the data sheet promises of a link between GPUs of one host, as H100s and H200s reach it."""
TENSOR_S = 38e-6
"""Seconds of the host's work for each tensor, whatever its size (`benchmarks/results/publish-h200.md`)."""


@dataclass(frozen=True)
class PublishSeconds:
    """Parts that are added up, though some of them overlap. The first version takes longer: its loading is watched."""

    network: float
    copies: float
    tensors: float

    @property
    def total(self) -> float:
        return self.network + self.copies + self.tensors


def publish_seconds(sizes: ModelSizes, links: Sequence[Link]) -> PublishSeconds | None:
    """Of a full version; None on cpu, over a transport or of a GPU whose rate is not known, and without engines. A
    transport that was measured over NVLink is as fast as a slower link between GPUs at most.

    Between hosts every process receives over one link of 400 Gb/s; NCCL may use several.
    """
    topology, rate = sizes.topology, transport_of(sizes.topology.transport).copy_rate
    gpu = gpu_of(topology.cluster)
    if gpu is None or rate is None or not links:
        return None
    if any(link.over is Medium.pcie for link in links):
        rate = min(rate, LINK * 1e9 * gpu.link_gb_s)
    received: Counter[tuple[Verb, Medium, str]] = Counter()
    for link in links:
        received[link.verb, link.over, link.target] += link.num_bytes

    def most(verb: Verb, *over: Medium) -> int:
        return max((size for (one, medium, _), size in received.items() if one is verb and medium in over), default=0)

    gathered = most(Verb.gather, Medium.nvlink, Medium.pcie) / (LINK * 1e9 * gpu.link_gb_s)
    return PublishSeconds(
        network=sum(most(verb, Medium.network) for verb in Verb) / NETWORK,
        copies=gathered + version_bytes(topology, sizes.weights, sizes.model) / rate,
        tensors=num_tensors(topology, sizes.weights) * TENSOR_S,
    )


def publish_lines(topology: Topology, links: Sequence[Link], seconds: PublishSeconds | None) -> Iterator[str]:
    """The busiest link of each kind, what a disk must hold, and an estimate of the time."""
    for (verb, medium), num_bytes in busiest(links).items():
        count = sum((link.verb, link.over) == (verb, medium) for link in links)
        shown = f"{count} link{'s' if count > 1 else ''} over {medium.value}"
        yield f"  {verb.value:<10} {shown:<30} {num_bytes / 1e9:>10,.3f} GB at most"
    transport = transport_of(topology.transport)
    written = next((link.num_bytes for link in links if link.over is Medium.disk), None)
    if written and isinstance(transport, StoringTransport):
        what, num_bytes = transport.stored(topology.weights, written)
        yield f"  {'disk':<10} {what:<30} {num_bytes / 1e9:>10,.3f} GB at least"
        yield f"  {'':<10} in {value_of(topology.config, transport.folder)}"
    if seconds is not None:
        parts = (
            f"network {seconds.network:.1f}, copies inside hosts {seconds.copies:.1f}, tensors {seconds.tensors:.1f}"
        )
        yield f"  {'seconds':<10} {f'about {seconds.total:.1f}, by estimate: {parts}'}"


class Publishing:
    """A `slime.sizes.estimate.PlanPart`.

    Attributes:
        links: what carries a published version; none without engines.
        first_bytes: of the first version of an engine, if the others are of adapters alone; 0: all are alike.
        seconds: of publishing one, where that can be estimated.
    """

    def __init__(self, sizes: ModelSizes) -> None:
        self._topology = sizes.topology
        self.first_bytes = 0
        if adapters_beside(sizes.topology.config.train):
            sent = version_bytes(sizes.topology, [*sizes.weights, *sizes.adapters], sizes.model)
            self.first_bytes, sizes = sent, dataclasses.replace(sizes, weights=sizes.adapters)
        self.links = publish_links(sizes.topology, sizes.weights, sizes.model)
        self.seconds = None if self.first_bytes else publish_seconds(sizes, self.links)  # adapters were not measured

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        if self.links:
            lines = [*publish_lines(self._topology, self.links, self.seconds)]
            if self.first_bytes:
                what = "an engine's first version has the model's weights too"
                lines += [f"  {'first':<10} {what}: {self.first_bytes / 1e9:,.3f} GB"]
            yield "a published version", lines

    def brief(self) -> Mapping[str, str]:
        return {}

    def document(self) -> Mapping[str, Any]:
        seconds = self.seconds and {**dataclasses.asdict(self.seconds), "total": self.seconds.total}
        return {
            **({"publish_first_bytes": self.first_bytes} if self.first_bytes else {}),
            "publish": [
                {
                    "does": link.verb.name,
                    "from": link.source,
                    "to": link.target,
                    "over": link.over.name,
                    "bytes": link.num_bytes,
                }
                for link in self.links
            ],
            "publish_seconds": seconds and {name: round(value, 3) for name, value in seconds.items()},
        }
