"""`slime plan --json`: the plan as one JSON object for programs. `docs/plan.md` describes its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

from slime.config.compose import Composed
from slime.errors import SlimeError
from slime.plan.commands import commands
from slime.plan.model import PlannedModel, read_model
from slime.plugins import Plugins
from slime.topology.topology import Engine, Topology, Trainer

SCHEMA = 1
"""Version of the document: a field that changes its meaning or goes raises it; a new one does not."""


def document(composed: Composed, plugins: Plugins) -> dict[str, Any]:
    """The plan as plain values; of a config with problems only those."""
    head = {"schema": SCHEMA, "problems": [_error(problem) for problem in composed.problems]}
    if composed.problems:
        return head
    model = read_model(composed, plugins)
    return {
        **head,
        "needs": [_error(need) for need in composed.needs],
        "run": {"name": composed.cfg.run.name, "model": composed.cfg.model.name, **composed.choices},
        **_topology(model.topology, model),
        "commands": commands(composed.cfg),
    }


def _error(error: SlimeError) -> dict[str, str]:
    return {"what": error.what, "where": error.where, "todo": error.todo}


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
