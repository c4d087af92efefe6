"""The model of a run on its layout, as far as sizes go. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.layout import Grid
from slime.models.bridge import HfConfig, ModelBridge
from slime.models.mapping import WeightMapping
from slime.models.shapes import Block
from slime.sizes.parameters import Held, Weight, copies_embeddings, held_by_stage, in_force, weights_of
from slime.topology.adapters import adapters_of
from slime.topology.topology import Topology


@dataclass(frozen=True)
class ModelSizes:
    """A model whose sizes are known, and the processes that it is laid out on.

    Attributes:
        model: Megatron's keywords of the model and its layout, with `vocab_size`.
        weights: every tensor of the model.
        adapters: the parameters of adapters, which learn in the place of the model's.
    """

    topology: Topology
    model: Mapping[str, Any]
    weights: Sequence[Weight]
    adapters: Sequence[Weight] = ()

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
        return [weight for weight in self.weights if weight.block is not Block.output and not weight.drafts]

    def held_of_critic(self, grid: Grid, model: Mapping[str, Any]) -> list[Held]:
        """The same of a critic."""
        keys = in_force(self.topology.config.train, self.weights)
        *others, last = held_by_stage(self.critic_weights, grid, model, in_force=keys)
        return [*others, dataclasses.replace(last, dense=last.dense + model["hidden_size"])]


def sizes_of(topology: Topology, model: Mapping[str, Any], mapping: WeightMapping) -> ModelSizes:
    """Of a model of which every block states its sizes.

    Args:
        model: as `keywords_of` returns it.
        mapping: the family's table.
    """
    adapters = adapters_of(topology.config.train)
    learning = weights_of(model, adapters.mapping(mapping)) if adapters else []
    return ModelSizes(topology, model, weights_of(model, mapping), learning)


def keywords_of(megatron: Mapping[str, Any], bridge: ModelBridge, hf: HfConfig) -> dict[str, Any]:
    """Megatron's keywords of the model and of its layout (`train.megatron`), with `vocab_size`."""
    model = {**bridge.transformer_config(hf), **bridge.model_kwargs(hf), **megatron}
    return {**model, "vocab_size": hf["vocab_size"]}
