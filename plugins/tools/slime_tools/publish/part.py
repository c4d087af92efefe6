"""What a plan says of publishing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.config.gpus import gpu_of
from slime.config.keys import value_of
from slime.sizes.model import ModelSizes
from slime.sizes.version import version_bytes
from slime.topology.adapters import adapters_beside
from slime.topology.links import Link, Medium, Verb
from slime.topology.topology import Topology
from slime.topology.transport_protocol import StoringTransport
from slime.weights.transports import transport_of
from slime_tools.publish.links import busiest, num_tensors, publish_links

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
    received: Counter[tuple[Verb, str]] = Counter()
    for link in links:
        if link.over is Medium.network:
            received[link.verb, link.target] += link.num_bytes
    busiest = (max((size for (verb, _), size in received.items() if verb is one), default=0) for one in Verb)
    return PublishSeconds(
        network=sum(busiest) / NETWORK,
        copies=version_bytes(topology, sizes.weights, sizes.model) / rate,
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
    """A `slime.plan.part.PlanPart`.

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
