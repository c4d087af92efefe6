"""What the plan's text and its JSON document are both made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.config.compose import Composed
from slime.config.hf import read_hf_config
from slime.config.needs import config_folder, is_awaited
from slime.config.paths import located, resolve
from slime.plan.memory import keywords_of
from slime.plugins import Plugins
from slime.topology.layout import split_layers
from slime.topology.links import Link, publish_links
from slime.topology.parameters import unknown_parameter, weights_of
from slime.topology.topology import Topology, read_topology


@dataclass(frozen=True)
class PlannedModel:
    """A model on its devices.

    Attributes:
        hf: config.json, cut as the run cuts it.
        architecture: keywords of Megatron's TransformerConfig.
        stages: layers by [pipeline stage][model chunk].
        dimensions: parallel dimensions, those of experts only where there are some.
        links: what carries a published version; None of a family with blocks of its own, whose sizes are not known.
        unknown: the first such parameter.
    """

    hf: Mapping[str, Any]
    architecture: Mapping[str, Any]
    topology: Topology
    stages: Sequence[Sequence[range]]
    dimensions: Sequence[str]
    links: Sequence[Link] | None
    unknown: str | None


def read_model(composed: Composed, plugins: Plugins) -> PlannedModel:
    """The model and the topology of a config without problems."""
    cfg = composed.cfg
    hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
    awaited = is_awaited(cfg.model.path, cfg.model.source)
    folder = located(cfg.model.path) if awaited else resolve(cfg.model.path)
    bridge = plugins.models.create(cfg.model.family)
    architecture, mapping = bridge.transformer_config(hf), bridge.weight_mapping(hf)
    topology = read_topology(cfg, model_path=Path(folder))
    stages = split_layers(hf["num_hidden_layers"], topology.grid, cfg.train.megatron)
    expert = ("etp", "ep", "edp") if architecture.get("num_moe_experts") else ()
    unknown, links = unknown_parameter(mapping), None
    if unknown is None:
        model = keywords_of(cfg, bridge, hf)
        weights = composed.memory.weights if composed.memory else weights_of(model, mapping)
        links = publish_links(cfg, topology, weights, model)
    return PlannedModel(hf, architecture, topology, stages, ("tp", "cp", "dp", "pp", *expert), links, unknown)
