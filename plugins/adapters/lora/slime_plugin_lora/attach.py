"""Freezes a model and gives its linear layers adapters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slime.errors import SlimeError
from slime.models.mapping import WeightMapping
from slime_plugin_lora.layers import Part, adapt
from slime_plugin_lora.options import LoraConfig, Published
from slime_plugin_lora.targets import Target, targets_of
from slime_plugin_megatron.weights.local import LocalTensor, local_tensors


def attach(modules: Sequence[nn.Module], base: WeightMapping, options: LoraConfig, scale: float, seed: int) -> None:
    """Afterwards the adapters' parameters alone learn.

    Raises:
        SlimeError: this rank's layers get none.
    """
    owners = {id(layer.weight): layer for module in modules for layer in module.modules() if hasattr(layer, "weight")}
    for module in modules:
        module.requires_grad_(False)
        if getattr(module, "pre_process", False):
            # What is computed again must have an input with a gradient, and the embeddings give none.
            module.get_submodule("embedding").register_forward_hook(_with_gradient)
    adapted = 0
    for name, held in local_tensors(modules, base).items():
        if targets := targets_of(held.entry.rule, options.targets):
            parts = [_part(name, held, target, options, seed) for target in targets]
            adapt(owners[id(held.tensor)], parts, scale, beside=options.publish is Published.adapters)
            adapted += 1
    if not adapted:
        todo = "Name layers that every pipeline stage has, or use fewer stages."
        raise SlimeError("a pipeline stage has no layer with an adapter", where="train.lora.targets", todo=todo)


def _with_gradient(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output.requires_grad_() if torch.is_grad_enabled() else output


def _part(name: str, held: LocalTensor, target: Target, options: LoraConfig, seed: int) -> Part:
    """Of one target: its rows of the layer's weight, and first values of A as PEFT draws them."""
    weight, shard, layout = held.tensor, held.shard, held.entry.rule.layout
    assert options.rank is not None, "there are adapters"
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
        whole = torch.empty(options.rank, width)
        nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
    first = whole.chunk(shard.size, dim=1)[shard.rank] if by_input else whole
    halves = layout.fused and layout.num_units is None
    return Part(target.name, rows, first.to(weight.dtype), weight.device, halves)
