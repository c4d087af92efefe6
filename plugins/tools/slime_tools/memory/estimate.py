"""What GPUs and hosts of a run hold, as plans show it, refuse it and write it down."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slime.errors import SlimeError
from slime.sizes.model import ModelSizes
from slime.topology.topology import Topology
from slime_tools.memory import problems
from slime_tools.memory.engine import EngineRank
from slime_tools.memory.memory_plan import MemoryPlan, Place, most
from slime_tools.memory.trainer import GIB, Phase, Table


@dataclass(frozen=True)
class GpuMemory:
    """`slime.sizes.estimate.MemoryEstimate` of a run on GPUs."""

    plan: MemoryPlan

    @classmethod
    def of(cls, sizes: ModelSizes) -> GpuMemory:
        return cls(MemoryPlan.of(sizes))

    def under(self, topology: Topology) -> GpuMemory:
        return GpuMemory(dataclasses.replace(self.plan, topology=topology))

    def problems(self) -> Iterator[SlimeError]:
        return problems.memory_problems(self.plan)

    def warnings(self) -> Iterator[SlimeError]:
        return problems.memory_warnings(self.plan)

    def fit_together(self) -> bool:
        return problems.fit_together(self.plan)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        plan = self.plan
        trained = max((place for place in plan.devices if place.stage is not None), key=most)
        for place in (trained, *(place for place in plan.devices if place.stage is None)):
            yield _title("memory a device", place, plan.device_bytes), [*_lines(place.table)]
        if engines := plan.every_engine:
            yield "token pools", [_pool(name, rank) for name, rank in engines.items()]
        host = max(plan.hosts, key=most)
        yield _title("memory a host", host, plan.host_bytes), [*_lines(host.table)]

    def brief(self) -> dict[str, str]:
        plan = self.plan
        kinds = (("device", plan.devices, plan.device_bytes), ("host", plan.hosts, plan.host_bytes))
        return {"memory": "; ".join(_fullest(what, max(places, key=most), size) for what, places, size in kinds)}

    def document(self) -> dict[str, Any]:
        """Bytes by item and phase, and the engines' pools."""
        plan = self.plan
        memory = {
            "device_bytes": plan.device_bytes,
            "host_bytes": plan.host_bytes,
            "devices": [_place(place) for place in plan.devices],
            "hosts": [_place(place) for place in plan.hosts],
        }
        return {"memory": memory, "pools": {name: _pool_fields(rank) for name, rank in plan.every_engine.items()}}

    def peaks(self) -> dict[str, float]:
        """GiB on the fullest device and host: `memory/train_planned_gib` stands beside `memory/train_gib`."""
        cluster, trainers = self.plan.cfg.cluster, self.plan.trainers
        hosts = [rank.on_host(min(cluster.devices_per_node, cluster.num_trainers)) for rank in trainers]
        peaks = {}
        for phase in (Phase.logprobs, Phase.train):
            if phase in trainers[0].training:
                peaks[f"memory/{phase.value}_planned_gib"] = max(rank.allocated(phase) for rank in trainers) / GIB
                peaks[f"memory/{phase.value}_host_planned_gib"] = max(host.total(phase) for host in hosts) / GIB
        return peaks


def _title(what: str, place: Place, capacity: float | None) -> str:
    size = f"of {capacity / GIB:.1f} " if capacity else ""
    return f"{what}: GiB {size}on the fullest, {place.name}; most while '{place.table.peak.value}'"


def _fullest(what: str, place: Place, capacity: float | None) -> str:
    size = f" of {capacity / GIB:,.1f}" if capacity else ""
    return f"{most(place) / GIB:,.1f}{size} GiB of the fullest {what}, while '{place.table.peak.value}'"


def _lines(table: Table) -> Iterator[str]:
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
