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
from slime.plugins import Plugins
from slime.topology.layout import split_layers
from slime.topology.topology import Topology, read_topology


@dataclass(frozen=True)
class PlannedModel:
    """A model on its devices.

    Attributes:
        hf: config.json, cut as the run cuts it.
        architecture: keywords of Megatron's TransformerConfig.
        stages: layers by [pipeline stage][model chunk].
        dimensions: parallel dimensions, those of experts only where there are some.
    """

    hf: Mapping[str, Any]
    architecture: Mapping[str, Any]
    topology: Topology
    stages: Sequence[Sequence[range]]
    dimensions: Sequence[str]


def read_model(composed: Composed, plugins: Plugins) -> PlannedModel:
    """The model and the topology of a config without problems."""
    cfg = composed.cfg
    hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
    awaited = is_awaited(cfg.model.path, cfg.model.source)
    folder = located(cfg.model.path) if awaited else resolve(cfg.model.path)
    architecture = plugins.models.create(cfg.model.family).transformer_config(hf)
    topology = read_topology(cfg, model_path=Path(folder))
    stages = split_layers(hf["num_hidden_layers"], topology.grid, cfg.train.megatron)
    expert = ("etp", "ep", "edp") if architecture.get("num_moe_experts") else ()
    return PlannedModel(hf, architecture, topology, stages, ("tp", "cp", "dp", "pp", *expert))
