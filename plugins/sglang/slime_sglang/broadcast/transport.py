"""The plan's side of the transport `broadcast`. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from slime.errors import SlimeError
from slime.topology.links import Link, Verb, engine_ranks, medium_between
from slime.topology.topology import Topology


class BroadcastTransport:
    """A process group of each source and all engine ranks."""

    sender = "slime_sglang.broadcast.groups:BroadcastGroups"
    copy_rate = 355e9
    """Of a bare broadcast between H200s (`benchmarks/results/publish-h200.md`): whole tensors are gathered before."""

    def problems(self, topology: Topology) -> Iterator[SlimeError]:
        if topology.cluster.colocated and topology.cluster.on_gpus:
            what = "is broadcast, but NCCL takes one process a GPU"
            yield SlimeError(what, where="weights.transport", todo="Leave it out.")

    def links(self, topology: Topology, num_bytes: int) -> Iterator[Link]:
        """Around a ring of rank 0 and all engine ranks."""
        before, at = "trainer 0", topology.trainers[0].place
        for name, rank, place in engine_ranks(topology):
            target = f"{name} rank {rank}"
            yield Link(Verb.hand_over, before, target, medium_between(topology.cluster, at, place), num_bytes)
            before, at = target, place
