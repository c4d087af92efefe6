"""How many parameters a model has, by layer and block, and how many of them a trainer rank holds. No torch.

Which parameters there are, the table of the family's weights says (`WeightMapping`): sandwich norms, biases, layers
with an indexer. Their shapes follow from Megatron's keywords, which the bridge gives. What tensor parallelism cuts and
what it leaves whole is as the specs of `slime.models.specs` build it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slime.config.schema import SlimeConfig
from slime.models.traits import coefficient_of
from slime.topology.layout import Grid, split_layers

if TYPE_CHECKING:
    from slime.weights.megatron.mapping import Rule, WeightMapping

Model = Mapping[str, Any]
"""Keywords of Megatron's TransformerConfig, with `vocab_size`."""

_DECODER = "decoder.layers.{layer}."
_MTP = "mtp.layers.0."
_MTP_LAYER = f"{_MTP}transformer_layer."
_EXPERT = "mlp.experts.local_experts.{expert}."


class Block(enum.Enum):
    embedding = "embedding"
    attention = "attention"
    indexer = "indexer"
    mlp = "dense MLP"
    router = "router"
    correction = "correction bias"
    shared = "shared expert"
    experts = "experts"
    norm = "norms"
    projection = "projection"
    output = "output layer"


class Cut(enum.Enum):
    """What a weight is cut into parts by."""

    whole = "every tensor-parallel rank holds it"
    tensor = "tensor parallelism"
    expert = "expert parallelism, each expert by expert tensor parallelism"


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


Sizes = Callable[[Model], tuple[int, ...]]
_WHOLE, _TENSOR = Cut.whole, Cut.tensor


def _query_size(model: Model) -> int:
    """Of one head, both parts."""
    return int(model["qk_head_dim"] + model["qk_pos_emb_head_dim"])


def _qkv(model: Model) -> int:
    return int((model["num_attention_heads"] + 2 * model["num_query_groups"]) * model["kv_channels"])


def _head_size(model: Model) -> int:
    """What a head adds to the input of the output projection."""
    return int(model["v_head_dim"] if model.get("multi_latent_attention") else model["kv_channels"])


def _gated(size: str) -> dict[str, Sizes]:
    return {
        "linear_fc1.weight": lambda m: (2 * m[size], m["hidden_size"]),
        "linear_fc2.weight": lambda m: (m["hidden_size"], m[size]),
    }


def _query_norm(model: Model) -> tuple[int, ...]:
    return (model["q_lora_rank"] if model.get("multi_latent_attention") else model["kv_channels"],)


_HIDDEN: Sizes = lambda m: (m["hidden_size"],)  # noqa: E731
_ATTENTION: dict[str, tuple[Sizes, Cut]] = {
    "linear_qkv.weight": (lambda m: (_qkv(m), m["hidden_size"]), _TENSOR),
    "linear_qkv.bias": (lambda m: (_qkv(m),), _TENSOR),
    "q_layernorm.weight": (_query_norm, _WHOLE),
    "k_layernorm.weight": (lambda m: (m["kv_channels"],), _WHOLE),
    "linear_q_proj.weight": (lambda m: (m["num_attention_heads"] * _query_size(m), m["hidden_size"]), _TENSOR),
    "linear_q_down_proj.weight": (lambda m: (m["q_lora_rank"], m["hidden_size"]), _WHOLE),
    "linear_q_up_proj.weight": (lambda m: (m["num_attention_heads"] * _query_size(m), m["q_lora_rank"]), _TENSOR),
    "linear_kv_down_proj.weight": (
        lambda m: (m["kv_lora_rank"] + m["qk_pos_emb_head_dim"], m["hidden_size"]),
        _WHOLE,
    ),
    "kv_layernorm.weight": (lambda m: (m["kv_lora_rank"],), _WHOLE),
    "linear_kv_up_proj.weight": (
        lambda m: (m["num_attention_heads"] * (m["qk_head_dim"] + m["v_head_dim"]), m["kv_lora_rank"]),
        _TENSOR,
    ),
    "linear_proj.weight": (lambda m: (m["hidden_size"], m["num_attention_heads"] * _head_size(m)), _TENSOR),
}
_INDEXER: dict[str, Sizes] = {
    "wq_b.weight": lambda m: (m["dsa_indexer_n_heads"] * m["dsa_indexer_head_dim"], m["q_lora_rank"]),
    "wk.weight": lambda m: (m["dsa_indexer_head_dim"], m["hidden_size"]),
    "k_norm.weight": lambda m: (m["dsa_indexer_head_dim"],),
    "k_norm.bias": lambda m: (m["dsa_indexer_head_dim"],),
    "weights_proj.weight": lambda m: (m["dsa_indexer_n_heads"], m["hidden_size"]),
}
_OF_LAYER: dict[str, tuple[Sizes, Cut, Block]] = {
    "input_layernorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    "pre_mlp_layernorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    "self_attention.linear_proj.post_layernorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    "mlp.linear_fc2.post_layernorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    **{f"self_attention.{name}": (sizes, cut, Block.attention) for name, (sizes, cut) in _ATTENTION.items()},
    **{f"self_attention.indexer.{name}": (sizes, _WHOLE, Block.indexer) for name, sizes in _INDEXER.items()},
    **{f"mlp.{name}": (sizes, _TENSOR, Block.mlp) for name, sizes in _gated("ffn_hidden_size").items()},
    "mlp.router.expert_bias": (lambda m: (m["num_moe_experts"],), _WHOLE, Block.correction),
    "mlp.router.weight": (lambda m: (m["num_moe_experts"], m["hidden_size"]), _WHOLE, Block.router),
    **{
        f"mlp.shared_experts.{name}": (sizes, _TENSOR, Block.shared)
        for name, sizes in _gated("moe_shared_expert_intermediate_size").items()
    },
    **{f"{_EXPERT}{name}": (sizes, Cut.expert, Block.experts) for name, sizes in _gated("moe_ffn_hidden_size").items()},
}
_OUTSIDE: dict[str, tuple[Sizes, Cut, Block]] = {
    "embedding.word_embeddings.weight": (lambda m: (m["vocab_size"], m["hidden_size"]), _TENSOR, Block.embedding),
    "decoder.final_layernorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    "output_layer.weight": (lambda m: (m["vocab_size"], m["hidden_size"]), _TENSOR, Block.output),
    f"{_MTP}enorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    f"{_MTP}hnorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    f"{_MTP}final_layernorm.weight": (_HIDDEN, _WHOLE, Block.norm),
    f"{_MTP}eh_proj.weight": (lambda m: (m["hidden_size"], 2 * m["hidden_size"]), _TENSOR, Block.projection),
}


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
        inside = rule.megatron.removeprefix(_DECODER).removeprefix(_MTP_LAYER)
        if inside not in _OUTSIDE and inside not in _OF_LAYER:
            return rule.megatron
    return None


def shape_of(rule: Rule, model: Model) -> tuple[int, ...]:
    """Of the whole parameter that a rule of the table is about, of one layer and expert."""
    return _known(rule.megatron)[1][0](model)


def _known(name: str) -> tuple[str, tuple[Sizes, Cut, Block]]:
    """A parameter's name from inside its layer, and what is known of it."""
    inside = name.removeprefix(_DECODER).removeprefix(_MTP_LAYER)
    return inside, (_OUTSIDE if inside == name else _OF_LAYER)[inside]


def _weights_of(rule: Rule, model: Model, num_layers: int, num_experts: int) -> Iterator[Weight]:
    inside, (sizes, cut, block) = _known(rule.megatron)
    count = num_experts if rule.per_expert else 1
    weight = Weight(inside, sizes(model), cut, block, drafts=rule.drafts, learns_by=rule.learns_by, count=count)
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
