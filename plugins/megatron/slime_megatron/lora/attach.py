"""Freezes a model and gives its linear layers adapters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slime.errors import SlimeError
from slime.models.mapping import Rule, WeightMapping
from slime_megatron.lora.layers import Part, adapt
from slime_megatron.lora.options import LoraConfig, Published
from slime_megatron.lora.targets import Target, rank_of, targets_of
from slime_megatron.train.weights.local import LocalTensor, local_tensors


def attach(modules: Sequence[nn.Module], base: WeightMapping, options: LoraConfig, seed: int) -> None:
    """Afterwards the adapters' parameters alone learn. Raises SlimeError: this rank's layers get none."""
    for module in modules:
        module.requires_grad_(False)
        if linears := {_linear(rule) for rule in base.rules if rule.per_expert and targets_of(rule, options)}:
            from slime_megatron.lora.experts import make_room

            make_room(module, linears)
        if getattr(module, "pre_process", False):
            # What is computed again must have an input with a gradient, and the embeddings give none.
            module.get_submodule("embedding").register_forward_hook(_with_gradient)
    adapted = 0
    for name, held in local_tensors(modules, base).items():
        if targets := targets_of(held.entry.rule, options):
            rank = rank_of(held.entry.rule, options)
            assert rank, "what has targets has a rank"
            parts = [_part(name, held, target, rank, seed) for target in targets]
            adapt(held.layer, parts, options.alpha / rank, beside=options.publish is Published.adapters)
            adapted += 1
    if not adapted:
        todo = "Name layers that every pipeline stage has, or use fewer stages."
        raise SlimeError("a pipeline stage has no layer with an adapter", where="train.lora.targets", todo=todo)


def _linear(rule: Rule) -> str:
    """`linear_fc1` or `linear_fc2`."""
    return rule.megatron.split(".")[-2]


def _with_gradient(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.requires_grad_() if torch.is_grad_enabled() else output


def _part(name: str, held: LocalTensor, target: Target, rank: int, seed: int) -> Part:
    """Of one target: its rows of the layer's weight, and first values of A as PEFT draws them."""
    weight, shard, layout = held.tensor, held.shard, held.entry.rule.layout
    if layout.fused or len(layout.parts) == 1:
        rows = torch.arange(weight.size(0))
    else:
        pieces = layout.pieces(weight.size(0), shard)
        mine = [torch.arange(x.target, x.target + x.length) for x in pieces if x.index == target.index]
        rows = torch.cat(mine)
    by_input = shard.dim == 1 and shard.size > 1
    width = weight.size(1) * (shard.size if by_input else 1)
    key = f"{seed} {name} {target.name}".encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "big"))
    with torch.device("cpu"):
        whole = torch.empty(rank, width)
        nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
    first = whole.chunk(shard.size, dim=1)[shard.rank] if by_input else whole
    halves = layout.fused and layout.num_units is None
    return Part(target.name, rows, first.to(weight.dtype), weight.device, halves)
