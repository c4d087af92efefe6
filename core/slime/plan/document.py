"""`slime plan --json`: the plan as one JSON object for programs. `docs/plan.md` describes its fields."""

from __future__ import annotations

from typing import Any

from slime.compose.compose import Composed
from slime.plan.commands import commands
from slime.plan.model import PlannedModel, Stage, read_model
from slime.plan.summary import summary
from slime.plan.work import batch, learning, requests
from slime.plugins import Plugins
from slime.topology.topology import Engine, Topology, Trainer

UNKNOWN = {"bubbles": None, "publish": None, "publish_seconds": None, "step_seconds": None, "disk": None}
"""Fields of parts of a plan whose distribution is not installed, or of a model whose sizes are not known."""
SCHEMA = 2
"""Version of the document: a field that changes its meaning or goes raises it; a new one does not."""


def document(composed: Composed, plugins: Plugins) -> dict[str, Any]:
    """The plan as plain values; of a config with problems only those."""
    head = {
        "schema": SCHEMA,
        "warnings": [warning.document() for warning in composed.warnings],
        "problems": [problem.document() for problem in composed.problems],
    }
    if composed.problems:
        return head
    model = read_model(composed, plugins)
    return {
        **head,
        "needs": [need.document() for need in composed.needs],
        "run": {"name": composed.cfg.run.name, "model": composed.cfg.model.name, **composed.choices},
        "summary": summary(composed, model, plugins),
        "learning": learning(model.topology),
        "batch": batch(model.topology),
        "requests": requests(model.topology),
        **_topology(model.topology, model),
        **UNKNOWN,
        **{name: value for part in model.parts for name, value in part.document().items()},
        **(composed.memory.document() if composed.memory else {"memory": None, "pools": {}}),
        "commands": commands(composed.cfg.cluster),
    }


def _topology(topology: Topology, model: PlannedModel) -> dict[str, Any]:
    grid, dimensions = topology.grid, model.dimensions
    return {
        "sizes": {name: getattr(grid, name) for name in (*dimensions, "vpp")},
        "groups": {name: grid.groups(name) for name in dimensions},
        "stages": [_stage(stage) for stage in model.stages],
        "trainers": [_trainer(trainer) for trainer in topology.trainers],
        "trainer_environment": dict(topology.trainers[0].environment),
        "engines": [_engine(engine) for engine in topology.engines],
        "outside_engines": list(topology.outside),
        "frozen_engines": [_engine(engine) for engine in topology.frozen_engines],
        "spare_hosts": topology.cluster.spares,
        "shares_gpus": topology.shares_gpus,
        "takes_turns": topology.takes_turns,
        "transport": topology.transport,
    }


def _stage(stage: Stage) -> dict[str, Any]:
    layers = [_span(chunk) for chunk in stage.chunks]
    sizes = {"parameters": stage.parameters, "parameters_a_rank": stage.of_rank}
    return {"layers": layers, "ranks": _span(stage.ranks), **sizes}


def _trainer(trainer: Trainer) -> dict[str, Any]:
    at = {"rank": trainer.rank, "host": trainer.place.node, "device": trainer.place.devices[0]}
    return {**at, "coordinates": dict(trainer.coordinates)}


def _engine(engine: Engine) -> dict[str, Any]:
    return {
        **vars(engine),
        "role": engine.role.name,
        "nodes": [{"host": at.node, "devices": _span(at.devices)} for at in engine.nodes],
        "publishers": _span(engine.publishers),
    }


def _span(numbers: range) -> list[int]:
    return [numbers.start, numbers.stop]
