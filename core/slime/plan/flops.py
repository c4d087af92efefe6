"""FLOPs of a model by its sizes, and how much work a sequence is compared with another one. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slime.config.hf import read_hf_config
from slime.config.schema import ModelConfig
from slime.models.blocks import Attention, BuildingBlock
from slime.models.shapes import Block
from slime.plugins import Plugins
from slime.sizes.model import keywords_of
from slime.sizes.parameters import Weight, blocks_by_layer, unknown_parameter, weights_of


@dataclass(frozen=True)
class ForwardFlops:
    """FLOPs of a model's forward pass, by Megatron's keywords with `vocab_size`; `tokens`: mean of a sequence."""

    model: Mapping[str, Any]
    weights: Sequence[Weight]
    tokens: float

    @cached_property
    def products_by_layer(self) -> list[float]:
        """The same without attention: two a weight that a token meets."""
        met = [0.0] * self.model["num_layers"]
        for weight in self.weights:
            if weight.layer is not None and len(weight.shape) > 1 and weight.block is not Block.experts:
                met[weight.layer] += 2 * weight.numel
        return met

    @cached_property
    def by_layer(self) -> list[float]:
        """FLOPs of a token in each decoder layer, without routed experts: products, and attention to as many keys as it
        meets in the mean."""
        return [
            flops + sum(one.flops * one.keys(self.tokens) for one in self.attention(layer))
            for layer, flops in enumerate(self.products_by_layer)
        ]

    def attention(self, layer: int) -> Iterator[Attention]:
        found = (block.attention(self.model, layer) for block in self.blocks[layer])
        return (attention for attention in found if attention)

    @cached_property
    def blocks(self) -> dict[int, tuple[BuildingBlock, ...]]:
        return blocks_by_layer(self.weights)

    @cached_property
    def of_experts(self) -> dict[int, float]:
        """FLOPs of a token in the experts that it is sent to, by layer."""
        found: dict[int, float] = {}
        for weight in self.weights:
            if weight.layer is not None and weight.block is Block.experts:
                share = self.model["moe_router_topk"] / weight.count
                found[weight.layer] = found.get(weight.layer, 0.0) + 2 * weight.numel * share
        return found

    def products(self, layers: Iterable[int], *, uneven: float = 1.0) -> float:
        """FLOPs of a token in layers without attention; `uneven` as in `stage`."""
        return sum(self.products_by_layer[layer] + uneven * self.of_experts.get(layer, 0.0) for layer in layers)

    def stage(self, layers: Iterable[int], *, is_last: bool, uneven: float = 1.0) -> float:
        """FLOPs of a token in a pipeline stage; `uneven`: tokens of the busiest experts' rank relative to the mean."""
        flops = sum(self.by_layer[layer] + uneven * self.of_experts.get(layer, 0.0) for layer in layers)
        return flops + self.head * is_last

    @property
    def head(self) -> float:
        return float(2 * self.model["vocab_size"] * self.model["hidden_size"])

    @property
    def whole(self) -> float:
        """FLOPs of a token in the whole model."""
        return self.stage(range(self.model["num_layers"]), is_last=True)


def attention(model: ModelConfig, megatron: Mapping[str, Any], plugins: Plugins) -> tuple[Attention, ...]:
    """What attention is beside all else that is computed for a token, by the number of keys that a query meets at most.

    None for a family with blocks that state no sizes: a sequence is as much work as it has tokens then.
    """
    hf = read_hf_config(model.path, model.num_layers)
    bridge = plugins.models.create(model.family)
    mapping = bridge.weight_mapping(hf)
    if unknown_parameter(mapping):
        return ()
    keywords = keywords_of(megatron, bridge, hf)
    return attention_of(keywords, weights_of(keywords, mapping))


def attention_of(model: Mapping[str, Any], weights: Sequence[Weight]) -> tuple[Attention, ...]:
    """The same of a model whose sizes are known. `Attention.flops` are shares of those that a token takes without any
    attention, so that `slime.train.bins.Shape.work` is proportional to `ForwardFlops`."""
    alone, found = ForwardFlops(model, weights, 0), dict[float, float]()
    rest = alone.whole
    for layer in range(model["num_layers"]):
        for one in alone.attention(layer):
            found[one.most_keys] = found.get(one.most_keys, 0.0) + one.flops / rest
    return tuple(Attention(found[most], most) for most in sorted(found))
