"""What the plan's text and its JSON document are both made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slime.compose.compose import Composed
from slime.config.hf import config_folder, read_hf_config
from slime.layout import split_layers
from slime.plugins import Plugins
from slime.sizes.estimate import PlanPart
from slime.sizes.model import ModelSizes, keywords_of, sizes_of
from slime.sizes.parameters import stages_of, unknown_parameter
from slime.topology.topology import Topology


@dataclass(frozen=True)
class Stage:
    """A pipeline stage.

    Attributes:
        chunks: layers of each model chunk, counted from 0.
        ranks: of the trainers.
        parameters: of the model that the stage has, a second copy of the embeddings not; None if sizes are not known.
        of_rank: that each of its ranks holds.
    """

    number: int
    chunks: Sequence[range]
    ranks: range
    parameters: int | None = None
    of_rank: int | None = None


@dataclass(frozen=True)
class PlannedModel:
    """A model on its devices.

    Attributes:
        hf: config.json, cut as the run cuts it.
        architecture: keywords of Megatron's TransformerConfig.
        dimensions: parallel dimensions, those of experts only where there are some.
        unknown: the first parameter of a family with blocks of its own, whose sizes are not known.
        parts: what plugins say of it, where the sizes are known.
        adapters: parameters that learn in the place of the model's; 0: these learn.
    """

    hf: Mapping[str, Any]
    architecture: Mapping[str, Any]
    topology: Topology
    stages: Sequence[Stage]
    dimensions: Sequence[str]
    unknown: str | None
    parts: Sequence[PlanPart] = ()
    adapters: int = 0


def read_model(composed: Composed, plugins: Plugins) -> PlannedModel:
    """The model and the topology of a config without problems."""
    cfg, topology = composed.cfg, composed.topology
    assert topology, "its config has no problems"
    hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
    bridge = plugins.models.create(cfg.model.family)
    architecture, mapping = bridge.transformer_config(hf), bridge.weight_mapping(hf)
    per_stage, stages = topology.grid.world_size // topology.grid.pp, []
    for number, chunks in enumerate(split_layers(hf["num_hidden_layers"], topology.grid, cfg.train.megatron)):
        stages.append(Stage(number, chunks, range(number * per_stage, (number + 1) * per_stage)))
    expert = ("etp", "ep", "edp") if architecture.get("num_moe_experts") else ()
    unknown, parts, learning = unknown_parameter(mapping), list[PlanPart](), 0
    if unknown is None:
        sizes = sizes_of(topology, keywords_of(cfg.train.megatron, bridge, hf), mapping)
        parts = [each.factory(sizes=sizes) for each in plugins.registries["plan_part"]]
        stages = list(_with_parameters(stages, sizes))
        learning = sum(weight.numel for weight in sizes.adapters)
    dimensions = ("tp", "cp", "dp", "pp", *expert)
    return PlannedModel(hf, architecture, topology, stages, dimensions, unknown, parts, learning)


def _with_parameters(stages: Sequence[Stage], sizes: ModelSizes) -> Iterator[Stage]:
    whole = Counter[int]()
    grid = sizes.topology.grid
    for weight, number in zip(sizes.weights, stages_of(sizes.weights, grid, sizes.model), strict=True):
        whole[number] += weight.numel
    for stage, held in zip(stages, sizes.held_of(grid, sizes.model), strict=True):
        yield replace(stage, parameters=whole[stage.number], of_rank=held.all)
