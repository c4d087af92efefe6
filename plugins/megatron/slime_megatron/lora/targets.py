"""Which layers get adapters, and what their parameters are called. No torch.

A Megatron layer that is several matrices of the checkpoint (queries, keys and values; gate and up) has an adapter for
each of them, as PEFT has on transformers' class. A checkpoint's own fused matrix has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from slime.errors import SlimeError, did_you_mean
from slime.models.blocks import BuildingBlock
from slime.models.mapping import MEGATRON, Layout, Rule, WeightMapping
from slime.models.shapes import Cut, Shape
from slime_megatron.lora.options import LoraConfig

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
    """

    name: str
    hf: str
    index: int


def rank_of(rule: Rule, options: LoraConfig) -> int | None:
    """Of the adapters of its parameter, if that is the weight of a linear layer that learns with the model and is
    published."""
    module = rule.megatron.split(".")[-2]
    plain = rule.per_layer and not (rule.drafts or rule.learns_by)
    if not (plain and rule.megatron.endswith(_WEIGHT) and module.startswith("linear_")):
        return None
    return options.expert_rank if rule.per_expert else options.rank


def targets_of(rule: Rule, options: LoraConfig) -> list[Target]:
    """The matrices of a rule that get adapters."""
    if rank_of(rule, options) is None:
        return []
    layers = [name.removesuffix(_WEIGHT) for name in rule.hf]
    found = [Target(layer.rpartition(".")[2], layer, index) for index, layer in enumerate(layers)]
    return [target for target in found if not options.targets or target.name in options.targets]


def require_known(base: WeightMapping, options: LoraConfig) -> None:
    """Raises SlimeError if a name is that of no layer that may get an adapter."""
    known = layers_with_adapters(base, replace(options, targets=[]))
    experts = layers_of_experts(base)
    for name in options.targets:
        if name not in known:
            what = f"'{name}' is no linear layer of this model that can have an adapter"
            todo = did_you_mean(name, known)
            if name in experts:
                what = f"'{name}' is a layer of routed experts alone, which have no adapters"
                todo = "Give them some by train.lora.expert_rank, or leave it out."
            raise SlimeError(what, where="train.lora.targets", todo=todo)


def layers_with_adapters(base: WeightMapping, options: LoraConfig) -> set[str]:
    """Names of the layers that get adapters."""
    return {target.name for rule in base.rules for target in targets_of(rule, options)}


def layers_of_experts(base: WeightMapping) -> set[str]:
    """Names of the linear layers of a routed expert."""
    return {name.split(".")[-2] for rule in base.rules if rule.per_expert for name in rule.hf}


def adapter_rules(base: WeightMapping, options: LoraConfig) -> tuple[Rule, ...]:
    """The table of the adapters: A [rank, input] and B [output, rank] of each target, by PEFT's names."""
    pairs = [
        pair
        for rule in base.rules
        for target in targets_of(rule, options)
        for pair in _pair(rule, target, rank_of(rule, options) or 0)
    ]
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
    cut = base.cut if base.cut is Cut.expert or by_input == (part == "lora_A") else Cut.whole
    if part == "lora_A":
        return Shape(lambda model: (rank, base.sizes(model)[1]), cut, base.block)
    parts = rule.layout.parts
    share = sum(parts) if rule.layout.fused else parts[target.index]
    return Shape(lambda model: (base.sizes(model)[0] * share // sum(parts), rank), cut, base.block)
