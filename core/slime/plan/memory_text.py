"""What `slime plan` says of memory, and of the bytes that a published version moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slime.config.keys import value_of
from slime.memory.engine import EngineRank
from slime.memory.links import busiest
from slime.memory.memory_plan import MemoryPlan, Place, most
from slime.memory.trainer import GIB, Table
from slime.plan.publish_time import PublishSeconds
from slime.topology.links import Link, Medium
from slime.topology.topology import Topology
from slime.topology.transport_protocol import StoringTransport
from slime.weights.transports import transport_of


def memory_sections(plan: MemoryPlan) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each section."""
    trained = max((p for p in plan.devices if p.stage is not None), key=most)
    yield _title("memory a device", trained, plan.device_bytes), [*_table(trained.table)]
    for place in plan.devices:
        if place.stage is None:
            yield _title("memory a device", place, plan.device_bytes), [*_table(place.table)]
    if engines := plan.engines:
        yield "token pools", [_pool(name, rank) for name, rank in engines.items()]
    host = max(plan.hosts, key=most)
    yield _title("memory a host", host, plan.host_bytes), [*_table(host.table)]


def _title(what: str, place: Place, capacity: float | None) -> str:
    size = f"of {capacity / GIB:.1f} " if capacity else ""
    return f"{what}: GiB {size}on the fullest, {place.name}; most while '{place.table.peak.value}'"


def _table(table: Table) -> Iterator[str]:
    phases = table.phases
    yield f"  {'':<22}" + "".join(f"{phase.value:>10}" for phase in phases)
    for item, row in table.rows.items():
        yield f"  {item:<22}" + "".join(_gib(row.get(phase)) for phase in phases)
    yield f"  {'total':<22}" + "".join(_gib(table.total(phase)) for phase in phases)


def _gib(num_bytes: float | None) -> str:
    return f"{'-':>10}" if not num_bytes else f"{num_bytes / GIB:>10.1f}"


def _pool(name: str, rank: EngineRank) -> str:
    if rank.pool_tokens is None:
        return f"  {name}: not known without cluster.device_memory_mb"
    ranks = f" in {rank.group.dp} data-parallel ranks" if rank.group.dp > 1 else ""
    return (
        f"  {name}: {rank.pool_tokens * rank.group.dp:,} tokens an engine{ranks}, "
        f"{rank.sequences:,} sequences of {rank.longest:,} at once"
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
