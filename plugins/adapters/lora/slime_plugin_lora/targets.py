"""Which layers get adapters, and what their parameters are called. No torch.

A Megatron layer that is several matrices of the checkpoint (queries, keys and values; gate and up) has an adapter for
each of them, as PEFT has on transformers' class. A checkpoint's own fused matrix has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from slime.errors import SlimeError, did_you_mean
from slime.models.blocks import BuildingBlock
from slime.models.mapping import MEGATRON, Layout, Rule, WeightMapping
from slime.models.shapes import Cut, Shape

PEFT = "base_model.model."
"""What PEFT puts before the names of the model's own layers."""
_WEIGHT = ".weight"
_ROW_PARALLEL = ("linear_proj", "linear_fc2")
"""Megatron-core's layers whose input is divided over tensor-parallel ranks; of all others it is the output."""


@dataclass(frozen=True)
class Target:
    """A matrix of the checkpoint that gets an adapter.

    Attributes:
        name: the last part of its layer's name, `q_proj`.
        hf: that name with `{layer}`, without `.weight`.
        index: of the matrix among those of its rule.
    """

    name: str
    hf: str
    index: int


def is_adaptable(rule: Rule) -> bool:
    """Whether its parameter is the weight of a linear layer that every token passes and that is published."""
    module = rule.megatron.split(".")[-2]
    plain = rule.per_layer and not (rule.per_expert or rule.drafts or rule.learns_by)
    return plain and rule.megatron.endswith(_WEIGHT) and module.startswith("linear_")


def targets_of(rule: Rule, chosen: Collection[str]) -> list[Target]:
    """The matrices of a rule that get adapters; empty `chosen`: all, if any may."""
    if not is_adaptable(rule):
        return []
    layers = [name.removesuffix(_WEIGHT) for name in rule.hf]
    found = [Target(layer.rpartition(".")[2], layer, index) for index, layer in enumerate(layers)]
    return [target for target in found if not chosen or target.name in chosen]


def require_known(base: WeightMapping, chosen: Collection[str]) -> None:
    """Raises SlimeError if a name is that of no layer that may get an adapter."""
    known = layers_with_adapters(base, ())
    experts = layers_of_experts(base)
    for name in chosen:
        if name not in known:
            what = f"'{name}' is no linear layer of this model that can have an adapter"
            if name in experts:
                what = f"'{name}' is a layer of routed experts alone, which have no adapters"
            raise SlimeError(what, where="train.lora.targets", todo=did_you_mean(name, known))


def layers_with_adapters(base: WeightMapping, chosen: Collection[str]) -> set[str]:
    """Names of the layers that get adapters."""
    return {target.name for rule in base.rules for target in targets_of(rule, chosen)}


def layers_of_experts(base: WeightMapping) -> set[str]:
    """Names of the linear layers of a routed expert."""
    return {name.split(".")[-2] for rule in base.rules if rule.per_expert for name in rule.hf}


def adapter_rules(base: WeightMapping, rank: int, chosen: Collection[str]) -> tuple[Rule, ...]:
    """The table of the adapters: A [rank, input] and B [output, rank] of each target, by PEFT's names."""
    pairs = [pair for rule in base.rules for target in targets_of(rule, chosen) for pair in _pair(rule, target, rank)]
    known = {name: shape for _, name, shape in pairs if shape}
    block = BuildingBlock(known)
    return tuple(rule.of(block) if name in known else rule for rule, name, _ in pairs)


def _pair(rule: Rule, target: Target, rank: int) -> Iterator[tuple[Rule, str, Shape | None]]:
    layer = rule.megatron.removesuffix(_WEIGHT)
    for part in ("lora_A", "lora_B"):
        name = f"{layer}.{part}.{target.name}"
        layout = rule.layout if part == "lora_B" and rule.layout.fused else Layout()
        hf = (f"{PEFT}{target.hf}.{part}{_WEIGHT}",)
        stated = rule.shape and _shape(rule, target, part, rank)
        yield Rule(name, hf, layout, rule.layers), name.removeprefix(MEGATRON), stated


def _shape(rule: Rule, target: Target, part: str, rank: int) -> Shape:
    base = rule.shape
    assert base, "asked of a rule that has one"
    by_input = rule.megatron.split(".")[-2] in _ROW_PARALLEL
    cut = base.cut if by_input == (part == "lora_A") else Cut.whole
    if part == "lora_A":
        return Shape(lambda model: (rank, base.sizes(model)[1]), cut, base.block)
    parts = rule.layout.parts
    share = sum(parts) if rule.layout.fused else parts[target.index]
    return Shape(lambda model: (base.sizes(model)[0] * share // sum(parts), rank), cut, base.block)
