"""How long a version takes from the trainers to the engines: an estimate from bytes and measured rates. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slime.algo.stages import run_stages
from slime.memory.links import num_tensors, publish_links, version_bytes
from slime.memory.memory_plan import MemoryPlan
from slime.topology.links import Link, Medium, Verb
from slime.weights.transports import transport_of

NETWORK = 40e9
"""Bytes/s of a GPU to other hosts, each way: 400 Gb/s less what protocols take."""
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


def publish_seconds(plan: MemoryPlan, links: Sequence[Link]) -> PublishSeconds | None:
    """Of a full version; None on cpu, over a transport whose rate is not known, and without engines.

    Between hosts every process receives over one link of 400 Gb/s; NCCL may use several.
    """
    topology, rate = plan.topology, transport_of(plan.topology.transport).copy_rate
    if not topology.cluster.on_gpus or rate is None or not links:
        return None
    received: Counter[tuple[Verb, str]] = Counter()
    for link in links:
        if link.over is Medium.network:
            received[link.verb, link.target] += link.num_bytes
    busiest = (max((size for (verb, _), size in received.items() if verb is one), default=0) for one in Verb)
    return PublishSeconds(
        network=sum(busiest) / NETWORK,
        copies=version_bytes(topology, plan.weights, plan.model) / rate,
        tensors=num_tensors(topology, plan.weights) * TENSOR_S,
    )


def seconds_of_layout(plan: MemoryPlan) -> PublishSeconds | None:
    """As `publish_seconds`, of a config that has no problems; None of one that only learns from demonstrations."""
    if not run_stages(plan.cfg).reinforces:
        return None
    return publish_seconds(plan, publish_links(plan.topology, plan.weights, plan.model))
