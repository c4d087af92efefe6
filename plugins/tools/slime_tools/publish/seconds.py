"""What a version moves from the trainers to the engines, and how long that takes: an estimate from bytes and measured
rates. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slime.config.gpus import gpu_of
from slime.config.keys import value_of
from slime.sizes.model import ModelSizes
from slime.sizes.version import version_bytes
from slime.topology.links import Link, Medium, Verb
from slime.topology.topology import Topology
from slime.topology.transport_protocol import StoringTransport
from slime.weights.transports import transport_of
from slime_tools.publish.links import busiest, num_tensors

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
