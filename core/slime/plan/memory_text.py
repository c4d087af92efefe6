"""What `slime plan` says of memory, and of the bytes that a published version moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slime.config.schema import SlimeConfig
from slime.plan.memory import MemoryPlan, Place, most
from slime.topology.engine_memory import EngineRank
from slime.topology.links import DISK, Link, busiest
from slime.topology.memory import GIB, Table


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


def publish_lines(cfg: SlimeConfig, links: Sequence[Link]) -> Iterator[str]:
    """The busiest link of each kind, and what a disk must hold."""
    for (verb, medium), num_bytes in busiest(links).items():
        count = sum((link.verb, link.over) == (verb, medium) for link in links)
        shown = f"{count} link{'s' if count > 1 else ''} over {medium.value}"
        yield f"  {verb.value:<10} {shown:<30} {num_bytes / 1e9:>10,.3f} GB at most"
    if full := next((link.num_bytes for link in links if link.target == DISK), None):
        deltas = f" and {cfg.weights.full_every - 1} deltas" if cfg.weights.full_every > 1 else ""
        yield f"  {'disk':<10} {f'two full versions{deltas}':<30} {2 * full / 1e9:>10,.3f} GB at least"
        yield f"  {'':<10} in {cfg.weights.path}"
