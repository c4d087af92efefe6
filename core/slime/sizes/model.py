"""The model of a run on its layout, as far as sizes go. No torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime import plugins
from slime.config.hf import QUANTIZATION, read_hf_config, scores
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.layout import Grid
from slime.models.bridge import HfConfig, ModelBridge
from slime.models.mapping import WeightMapping
from slime.models.shapes import Block
from slime.sizes.parameters import (
    Held,
    Weight,
    copies_embeddings,
    held_by_stage,
    in_force,
    unknown_parameter,
    weights_of,
)
from slime.topology.adapters import adapters_of
from slime.topology.topology import Topology


@dataclass(frozen=True)
class OtherModel:
    """A model beside the trained one; its attributes are as of `ModelSizes`."""

    model: Mapping[str, Any]
    weights: Sequence[Weight]


@dataclass(frozen=True)
class ModelSizes:
    """A model whose sizes are known, and the processes that it is laid out on.

    Attributes:
        model: Megatron's keywords of the model and its layout, with `vocab_size`.
        weights: every tensor of the model.
        adapters: the parameters of adapters, which learn in the place of the model's.
        frozen: by engine group the models that frozen engines have, as far as their sizes are known.
    """

    topology: Topology
    model: Mapping[str, Any]
    weights: Sequence[Weight]
    adapters: Sequence[Weight] = ()
    frozen: Mapping[str, OtherModel] = field(default_factory=dict)

    def held_of(self, grid: Grid, model: Mapping[str, Any]) -> list[Held]:
        """What a rank of every stage of a layout holds."""
        train = self.topology.config.train
        base = [dataclasses.replace(weight, is_frozen=bool(self.adapters)) for weight in self.weights]
        return held_by_stage(
            [*base, *self.adapters],
            grid,
            model,
            in_force=in_force(train, self.weights),
            copies_embeddings=copies_embeddings(train, self.weights, self.model),
        )

    @property
    def critic_weights(self) -> list[Weight]:
        """What a critic has of the model: all but its output layer and what drafts. The value head is one row."""
        return _without_output(self.weights)

    def held_of_critic(self, grid: Grid, model: Mapping[str, Any]) -> list[Held]:
        """What a rank of every stage holds of a critic."""
        keys = in_force(self.topology.config.train, self.weights)
        *others, last = held_by_stage(self.critic_weights, grid, model, in_force=keys)
        return [*others, dataclasses.replace(last, dense=last.dense + model["hidden_size"])]


def sizes_of(topology: Topology, model: Mapping[str, Any], mapping: WeightMapping) -> ModelSizes:
    """The sizes of a model of which every block states its own, by the family's table and what `keywords_of`
    returns."""
    adapters = adapters_of(topology.config.train)
    learning = weights_of(model, adapters.mapping(mapping)) if adapters else []
    return ModelSizes(topology, model, weights_of(model, mapping), learning, frozen_sizes(topology))


def frozen_sizes(topology: Topology) -> dict[str, OtherModel]:
    """The models of frozen engines by group: of families that are installed and state the sizes of their blocks, and
    in 16 bits."""
    found = {}
    for group in topology.frozen:
        with suppress(SlimeError, OSError, KeyError, TypeError, ValueError, ArithmeticError):  # it cannot be read
            folder = resolve(group.model or "")
            if other := _other_model(folder, (folder / "config.json").stat().st_mtime_ns):
                found[group.name] = other
    return found


@functools.lru_cache(maxsize=8)
def _other_model(folder: Path, changed: int) -> OtherModel | None:
    """The model of a config.json that was `changed` then: a plan asks for it several times."""
    hf = read_hf_config(str(folder))
    bridge = plugins.load().models.create(hf["model_type"])
    mapping = bridge.weight_mapping(hf)
    if hf.get(QUANTIZATION) or unknown_parameter(mapping):
        return None
    model = keywords_of({}, bridge, hf)
    weights = weights_of(model, mapping)
    return OtherModel(model, _without_output(weights) if scores(hf) else weights)


def _without_output(weights: Sequence[Weight]) -> list[Weight]:
    return [weight for weight in weights if weight.block is not Block.output and not weight.drafts]


def keywords_of(megatron: Mapping[str, Any], bridge: ModelBridge, hf: HfConfig) -> dict[str, Any]:
    """Megatron's keywords of the model and of its layout (`train.megatron`), with `vocab_size`."""
    found = {**bridge.transformer_config(hf), **bridge.model_kwargs(hf)}
    return {"vocab_size": hf.get("vocab_size"), **found, **megatron}
