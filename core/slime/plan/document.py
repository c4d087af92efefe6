"""`slime plan --json`: the plan as one JSON object for programs. `docs/plan.md` describes its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

from slime.config.compose import Composed
from slime.plan.commands import commands
from slime.plan.memory import MemoryPlan, Place
from slime.plan.model import PlannedModel, read_model
from slime.plugins import Plugins
from slime.topology.engine_memory import EngineRank
from slime.topology.links import Link
from slime.topology.topology import Engine, Topology, Trainer

SCHEMA = 1
"""Version of the document: a field that changes its meaning or goes raises it; a new one does not."""


def document(composed: Composed, plugins: Plugins) -> dict[str, Any]:
    """The plan as plain values; of a config with problems only those."""
    head = {"schema": SCHEMA, "problems": [problem.document() for problem in composed.problems]}
    if composed.problems:
        return head
    model = read_model(composed, plugins)
    return {
        **head,
        "needs": [need.document() for need in composed.needs],
        "run": {"name": composed.cfg.run.name, "model": composed.cfg.model.name, **composed.choices},
        **_topology(model.topology, model),
        "publish": None if model.links is None else [_link(link) for link in model.links],
        "memory": _memory(composed.memory) if composed.memory else None,
        "pools": {name: _pool(rank) for name, rank in composed.memory.engines.items()} if composed.memory else {},
        "commands": commands(composed.cfg),
    }


def _topology(topology: Topology, model: PlannedModel) -> dict[str, Any]:
    grid, dimensions = topology.grid, model.dimensions
    return {
        "sizes": {name: getattr(grid, name) for name in (*dimensions, "vpp")},
        "groups": {name: grid.groups(name) for name in dimensions},
        "stages": [[_span(layers) for layers in chunks] for chunks in model.stages],
        "trainers": [_trainer(trainer) for trainer in topology.trainers],
        "trainer_environment": dict(topology.trainers[0].environment),
        "engines": [_engine(engine) for engine in topology.engines],
        "shares_gpus": topology.shares_gpus,
        "transport": topology.transport.name,
    }


def _link(link: Link) -> dict[str, Any]:
    ends = {"from": link.source, "to": link.target}
    return {"does": link.verb.name, **ends, "over": link.over.name, "bytes": link.num_bytes}


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


def _pool(rank: EngineRank) -> dict[str, Any]:
    tokens = rank.pool_tokens
    return {
        "tokens": tokens and tokens * rank.group.dp,
        "data_parallel_ranks": rank.group.dp,
        "longest": rank.longest,
        "sequences": rank.sequences,
    }


def _trainer(trainer: Trainer) -> dict[str, Any]:
    at = {"rank": trainer.rank, "host": trainer.place.node, "device": trainer.place.devices[0]}
    return {**at, "coordinates": dict(trainer.coordinates)}


def _engine(engine: Engine) -> dict[str, Any]:
    plain = {field.name: _plain(getattr(engine, field.name)) for field in dataclasses.fields(engine)}
    return plain | {"nodes": [{"host": at.node, "devices": _span(at.devices)} for at in engine.nodes]}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, range):
        return _span(value)
    return dict(value) if isinstance(value, Mapping) else value


def _span(numbers: range) -> list[int]:
    """The first one and the one behind the last."""
    return [numbers.start, numbers.stop]
