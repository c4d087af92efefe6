"""How many parameters a model has, by layer and block, and how many of them a trainer rank holds. No torch.

The table of the family's weights (`WeightMapping`) says which parameters there are, and of which building block each is
one. The blocks state their shapes, by Megatron's keywords, and what tensor parallelism cuts of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slime.layout import Grid, split_layers
from slime.models.shapes import Block, Cut, Model, Shape
from slime.models.traits import coefficient_of

if TYPE_CHECKING:
    from slime.config.schema import TrainConfig
    from slime.models.blocks import BuildingBlock
    from slime.models.mapping import Rule, WeightMapping


@dataclass(frozen=True)
class Weight:
    """One parameter; the routed experts of a layer count as one.

    Attributes:
        name: Megatron's, from inside its layer.
        shape: of the whole parameter, of one expert.
        stated: what its block states of it.
        owner: that block.
        count: experts; otherwise 1.
        num_names: tensors of the checkpoint that it is made of, of one expert.
        layer: of the decoder, from 0. None outside of its layers.
        drafts, learns_by: as in `slime.models.mapping.Rule`.
        is_frozen: adapters learn in its place.
    """

    name: str
    shape: tuple[int, ...]
    stated: Shape
    owner: BuildingBlock
    layer: int | None = None
    drafts: bool = False
    learns_by: tuple[str, ...] = ()
    count: int = 1
    num_names: int = 1
    is_frozen: bool = False

    @property
    def cut(self) -> Cut:
        return self.stated.cut

    @property
    def block(self) -> Block:
        return self.stated.block

    @property
    def numel(self) -> int:
        return math.prod(self.shape) * self.count

    def on_rank(self, grid: Grid) -> int:
        parts = {Cut.whole: 1, Cut.tensor: grid.tp, Cut.expert: grid.ep * grid.etp}
        return self.numel // parts[self.cut]

    def learns(self, in_force: Collection[str]) -> bool:
        """Whether gradients move it, by the keys of `learns_by` that are set."""
        moves = self.block is not Block.correction and not self.is_frozen
        return moves and all(key in in_force for key in self.learns_by)


def weights_of(model: Model, mapping: WeightMapping) -> list[Weight]:
    """Every tensor of a family's table, correction biases included, a copy of tied embeddings not. Asked of models
    without an `unknown_parameter`."""
    found = []
    for rule in (rule for rule in mapping.rules if rule.exported):
        assert rule.block, "asked after unknown_parameter"
        assert rule.shape, "asked after unknown_parameter"
        weight = Weight(
            rule.part,
            shape_of(rule, model),
            rule.shape,
            rule.block,
            drafts=rule.drafts,
            learns_by=rule.learns_by,
            count=mapping.num_experts if rule.per_expert else 1,
            num_names=len(rule.hf),
        )
        layers = range(mapping.num_layers) if rule.layers is None else rule.layers
        found += [replace(weight, layer=layer) for layer in layers] if rule.per_layer else [weight]
    return found


def unknown_parameter(mapping: WeightMapping) -> str | None:
    """The first parameter of a family's table of which no building block states the shape."""
    return next((rule.megatron for rule in mapping.rules if rule.shape is None), None)


def shape_of(rule: Rule, model: Model) -> tuple[int, ...]:
    assert rule.shape, "asked after unknown_parameter"
    return rule.shape.sizes(model)


DRAFTING_LAYER = -1


def blocks_by_layer(weights: Iterable[Weight]) -> dict[int, tuple[BuildingBlock, ...]]:
    """The building blocks of each decoder layer, in the order of the table; those of a layer that drafts under
    `DRAFTING_LAYER`."""
    found: dict[int, dict[BuildingBlock, None]] = {}
    for weight in weights:
        layer = DRAFTING_LAYER if weight.drafts else weight.layer
        if layer is not None:
            found.setdefault(layer, {})[weight.owner] = None
    return {layer: tuple(blocks) for layer, blocks in found.items()}


@dataclass(frozen=True)
class Held:
    """Parameters of one trainer rank.

    Attributes:
        dense: that learn; their optimizer state is shared out over data- and context-parallel ranks.
        experts: that learn; over expert-data-parallel ranks.
        frozen: that do not learn and have neither gradient nor optimizer state; buffers too.
    """

    dense: int = 0
    experts: int = 0
    frozen: int = 0

    @property
    def learning(self) -> int:
        return self.dense + self.experts

    @property
    def all(self) -> int:
        return self.learning + self.frozen


def in_force(train: TrainConfig, weights: Iterable[Weight]) -> frozenset[str]:
    """The keys that are set, of those by which parts of the model learn."""
    keys = {key for weight in weights for key in weight.learns_by}
    return frozenset(key for key in keys if coefficient_of(train, key))


def copies_embeddings(train: TrainConfig, weights: Iterable[Weight], model: Model) -> bool:
    """Whether the last of several stages has a copy of the embeddings: as output layer, or to learn to draft with."""
    return bool(model.get("share_embeddings_and_output_weights")) or learns_to_draft(train, weights)


def learns_to_draft(train: TrainConfig, weights: Iterable[Weight]) -> bool:
    """Whether the part of the model that drafts is there and learns."""
    drafting = [weight for weight in weights if weight.drafts]
    keys = in_force(train, drafting)
    return any(weight.learns(keys) for weight in drafting)


def held_by_stage(
    weights: Sequence[Weight],
    grid: Grid,
    megatron: Model,
    *,
    in_force: Collection[str] = (),
    copies_embeddings: bool = False,
) -> list[Held]:
    """What a rank of each pipeline stage holds.

    Args:
        megatron: keywords of Megatron's TransformerConfig with `num_layers` and what divides them into stages.
        in_force: keys by which parts of the model learn, of those that are set (`in_force`).
        copies_embeddings: the last of several stages has a copy of them.
    """
    counts, last = [dict.fromkeys(("dense", "experts", "frozen"), 0) for _ in range(grid.pp)], grid.pp - 1
    for weight, stage in zip(weights, stages_of(weights, grid, megatron), strict=True):
        kind = "frozen" if not weight.learns(in_force) else "experts" if weight.cut is Cut.expert else "dense"
        count = weight.on_rank(grid)
        counts[stage][kind] += count
        if weight.block is Block.embedding and last and copies_embeddings:
            counts[last][kind] += count
    return [Held(**of_stage) for of_stage in counts]


def stages_of(weights: Sequence[Weight], grid: Grid, megatron: Model) -> list[int]:
    """The pipeline stage of each weight: the embeddings' is the first, that of all else outside layers the last."""
    stages = split_layers(megatron["num_layers"], grid, megatron)
    by_layer = {layer: stage for stage, chunks in enumerate(stages) for chunk in chunks for layer in chunk}
    outside = {Block.embedding: 0}
    return [
        outside.get(weight.block, grid.pp - 1) if weight.layer is None else by_layer[weight.layer] for weight in weights
    ]
