"""How many parameters a model has, by layer and block, and how many of them a trainer rank holds. No torch.

Which parameters there are, the table of the family's weights says (`WeightMapping`): sandwich norms, biases, layers
with an indexer. Their shapes, by Megatron's keywords, and what tensor parallelism cuts of them, say the blocks of
`slime.models`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slime.models import decoder, dsa, embeddings, gqa, mla, mlp, moe, mtp, output
from slime.models.rules import MEGATRON
from slime.models.shapes import Block, Cut, Model, Shape
from slime.models.traits import coefficient_of
from slime.topology.layout import Grid, split_layers

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig
    from slime.weights.megatron.mapping import Rule, WeightMapping

_OUTSIDE = {**embeddings.SHAPES, **output.SHAPES, **mtp.SHAPES}
_OF_LAYER = {**decoder.SHAPES, **mlp.SHAPES, **moe.SHAPES, **dsa.SHAPES}


@dataclass(frozen=True)
class Weight:
    """One parameter; the routed experts of a layer count as one.

    Attributes:
        name: Megatron's, from inside its layer.
        shape: of the whole parameter, of one expert.
        count: experts; otherwise 1.
        layer: of the decoder, from 0. None outside layers and in the prediction layer.
        drafts, learns_by: as in `slime.weights.megatron.mapping.Rule`.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut
    block: Block
    layer: int | None = None
    drafts: bool = False
    learns_by: tuple[str, ...] = ()
    count: int = 1

    @property
    def numel(self) -> int:
        return math.prod(self.shape) * self.count

    def on_rank(self, grid: Grid) -> int:
        """Parameters that one trainer rank holds of it."""
        parts = {Cut.whole: 1, Cut.tensor: grid.tp, Cut.expert: grid.ep * grid.etp}
        return self.numel // parts[self.cut]

    def learns(self, in_force: Collection[str]) -> bool:
        """Whether gradients move it, by the keys of `learns_by` that are set."""
        return self.block is not Block.correction and all(key in in_force for key in self.learns_by)


def weights_of(model: Model, mapping: WeightMapping) -> list[Weight]:
    """Every tensor of the model, correction biases included, a copy of tied embeddings not.

    Args:
        mapping: the family's table.

    Raises:
        KeyError: the table names a parameter whose shape is not known here, see `unknown_parameter`.
    """
    return [
        weight
        for rule in mapping.rules
        if rule.exported
        for weight in _weights_of(rule, model, mapping.num_layers, mapping.num_experts)
    ]


def unknown_parameter(mapping: WeightMapping) -> str | None:
    """The first parameter of a family's table whose shape is not known here: a block of the family's own."""
    for rule in mapping.rules:
        if not any(_inside(rule.megatron) in known for known in (_OUTSIDE, _OF_LAYER, gqa.SHAPES, mla.SHAPES)):
            return rule.megatron
    return None


def shape_of(rule: Rule, model: Model) -> tuple[int, ...]:
    """Of the whole parameter that a rule of the table is about, of one layer and expert."""
    return _known(rule.megatron, model).sizes(model)


def _inside(name: str) -> str:
    """A parameter's name from inside its layer."""
    return name.removeprefix(MEGATRON).removeprefix(mtp.INNER)


def _known(name: str, model: Model) -> Shape:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    inside, attention = _inside(name), mla if model.get("multi_latent_attention") else gqa
    return _OF_LAYER[inside] if inside in _OF_LAYER else attention.SHAPES[inside]


def _weights_of(rule: Rule, model: Model, num_layers: int, num_experts: int) -> Iterator[Weight]:
    sizes, cut, block = _known(rule.megatron, model)
    weight = Weight(
        _inside(rule.megatron),
        sizes(model),
        cut,
        block,
        drafts=rule.drafts,
        learns_by=rule.learns_by,
        count=num_experts if rule.per_expert else 1,
    )
    if not rule.per_layer:
        yield weight
        return
    for layer in range(num_layers) if rule.layers is None else rule.layers:
        yield replace(weight, layer=layer)


@dataclass(frozen=True)
class Held:
    """Parameters of one trainer rank.

    Attributes:
        dense: that learn; their optimizer state is shared out over data- and context-parallel ranks.
        experts: that learn; over expert-data-parallel ranks.
        frozen: that do not learn and have neither gradient nor optimizer state; buffers too.
        largest_experts: of the experts of one layer.
    """

    dense: int = 0
    experts: int = 0
    frozen: int = 0
    largest_experts: int = 0

    @property
    def learning(self) -> int:
        return self.dense + self.experts

    @property
    def all(self) -> int:
        return self.learning + self.frozen


def in_force(cfg: SlimeConfig, weights: Iterable[Weight]) -> frozenset[str]:
    """The keys that are set, of those by which parts of the model learn."""
    return frozenset(key for key in {key for weight in weights for key in weight.learns_by} if coefficient_of(cfg, key))


def copies_embeddings(cfg: SlimeConfig, weights: Iterable[Weight], model: Model) -> bool:
    """Whether the last of several stages has a copy of the embeddings: as output layer, or to learn to draft with."""
    return bool(model.get("share_embeddings_and_output_weights")) or learns_to_draft(cfg, weights)


def learns_to_draft(cfg: SlimeConfig, weights: Iterable[Weight]) -> bool:
    """Whether the part of the model that drafts is there and learns."""
    drafting = [weight for weight in weights if weight.drafts]
    keys = in_force(cfg, drafting)
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
    largest = _most_experts(weights, grid)
    return [Held(**of_stage, largest_experts=largest) for of_stage in counts]


def stages_of(weights: Sequence[Weight], grid: Grid, megatron: Model) -> list[int]:
    """The pipeline stage of each weight: the embeddings' is the first, that of all else outside layers the last."""
    stages = split_layers(megatron["num_layers"], grid, megatron)
    by_layer = {layer: stage for stage, chunks in enumerate(stages) for chunk in chunks for layer in chunk}
    outside = {Block.embedding: 0}
    return [
        outside.get(weight.block, grid.pp - 1) if weight.layer is None else by_layer[weight.layer] for weight in weights
    ]


def _most_experts(weights: Sequence[Weight], grid: Grid) -> int:
    by_layer: dict[int | None, int] = {}
    for weight in weights:
        if weight.block is Block.experts:
            by_layer[weight.layer] = by_layer.get(weight.layer, 0) + weight.on_rank(grid)
    return max(by_layer.values(), default=0)
