"""The transport of a run, and the plan's side of slime's own. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slime import plugins
from slime.config.keys import value_of
from slime.config.paths import located
from slime.config.weights import AUTO
from slime.errors import SlimeError, did_you_mean
from slime.extras import how_to_get
from slime.topology.links import Link, Medium, Verb, engine_ranks
from slime.topology.topology import Topology
from slime.topology.transport import BROADCAST, shares_memory
from slime.topology.transport_protocol import StoringTransport, Transport

LEAVE_OUT = "Leave it out."


def transport_of(name: str) -> Transport:
    """The installed transport of this name (`Topology.transport`)."""
    transport: Transport = plugins.load().transports.create(name)
    return transport


def written_folders(topology: Topology) -> dict[str, Path]:
    """Folders that a run writes besides its run directory, by the key that names them."""
    transport = transport_of(topology.transport)
    if not isinstance(transport, StoringTransport):
        return {}
    return {transport.folder: Path(located(value_of(topology.config, transport.folder)))}


def transport_problems(topology: Topology) -> Iterator[SlimeError]:
    """Problems of `weights.transport`: it is not installed, or cannot be kept."""
    name, known = topology.transport, plugins.load().transports
    if name not in known:
        todo = how_to_get(f"transport/{name}") or did_you_mean(name, [AUTO, *known.names()])
        yield SlimeError(f"no transport named '{name}' is installed", where="weights.transport", todo=todo)
        return
    yield from transport_of(name).problems(topology)
    if topology.weights.num_sources > 1 and name != BROADCAST:
        what = f"is {topology.weights.num_sources}, but only what is broadcast has several sources"
        can = not (topology.cluster.colocated and topology.cluster.on_gpus)
        todo = f"Leave it out, or set weights.transport={BROADCAST}." if can else LEAVE_OUT
        yield SlimeError(what, where="weights.num_sources", todo=todo)


class SharedMemoryTransport:
    """Engines map the memory of a publisher: rank by rank on the devices they share, or that of rank 0's host."""

    sender = "slime.weights.publisher.shared_memory:SharedMemorySender"
    copy_rate = 58e9
    """Bytes a second of one H200 that trains and generates (`benchmarks/results/publish-h200.md`)."""

    def problems(self, topology: Topology) -> Iterator[SlimeError]:
        if not shares_memory(topology.cluster):
            what = "is ipc, but engines and trainers share no memory"
            yield SlimeError(what, where="weights.transport", todo=LEAVE_OUT)

    def links(self, topology: Topology, num_bytes: int) -> Iterator[Link]:
        publishers = {engine.name: engine.publishers for engine in topology.engines}
        for name, rank, _ in engine_ranks(topology):
            target = f"{name} rank {rank}"
            if topology.cluster.colocated:
                yield Link(Verb.hand_over, f"trainer {publishers[name][rank]}", target, Medium.device, num_bytes)
            else:
                yield Link(Verb.hand_over, "trainer 0", target, Medium.host, num_bytes)
