"""What the plan says of memory: the sections of its text, and the fields of its document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slime_tools.memory.engine import EngineRank
from slime_tools.memory.memory_plan import MemoryPlan, Place, most
from slime_tools.memory.trainer import GIB, Table


def memory_sections(plan: MemoryPlan) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each section."""
    trained = max((p for p in plan.devices if p.stage is not None), key=most)
    yield _title("memory a device", trained, plan.device_bytes), [*_table(trained.table)]
    for place in plan.devices:
        if place.stage is None:
            yield _title("memory a device", place, plan.device_bytes), [*_table(place.table)]
    if engines := plan.every_engine:
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


def document(plan: MemoryPlan) -> dict[str, Any]:
    """The fields of `slime plan --json` that are this estimate's: bytes by item and phase, and the engines' pools."""
    return {"memory": _memory(plan), "pools": {name: _pool_fields(rank) for name, rank in plan.every_engine.items()}}


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    return {
        "device_bytes": plan.device_bytes,
        "host_bytes": plan.host_bytes,
        "devices": [_place(place) for place in plan.devices],
        "hosts": [_place(place) for place in plan.hosts],
    }


def _place(place: Place) -> dict[str, Any]:
    table = place.table
    return {
        "name": place.name,
        "stage": place.stage,
        "group": place.group and place.group.name,
        "peak": table.peak.name,
        "totals": {phase.name: round(table.total(phase)) for phase in table.phases},
        "items": {
            item: {phase.name: round(num_bytes) for phase, num_bytes in row.items()} for item, row in table.rows.items()
        },
    }


def _pool_fields(rank: EngineRank) -> dict[str, Any]:
    tokens = rank.pool_tokens
    return {
        "tokens": tokens and tokens * rank.group.dp,
        "data_parallel_ranks": rank.group.dp,
        "longest": rank.longest,
        "sequences": rank.sequences,
    }
