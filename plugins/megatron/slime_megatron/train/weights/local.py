"""The parameters one rank holds, under names and positions that count over the whole model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import parallel_state

from slime.errors import SlimeError, nearest
from slime.models.mapping import Entry, Shard, WeightMapping
from slime_megatron.train.model.linear import Adapted, whole_weight

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.|^\w+\.layers\.\d+\.transformer_layer\.")
"""A decoder layer of the stage, or one inside another kind of layer."""
_GROUPED_EXPERTS = (".experts.weight1", ".experts.weight2")
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")


@dataclass(frozen=True)
class LocalTensor:
    """A parameter (or persistent buffer) of this rank and its part of the whole.

    Attributes:
        is_copy: it repeats another stage's parameter.
        layer: whose `weight` it is; an adapter may add something to it.
    """

    entry: Entry
    tensor: torch.Tensor
    shard: Shard
    is_copy: bool
    layer: Any = None

    @property
    def published(self) -> torch.Tensor:
        """The values that engines and HF folders get, without gradient."""
        return whole_weight(self.layer).detach() if isinstance(self.layer, Adapted) else self.tensor.detach()


def local_tensors(modules: Sequence[torch.nn.Module], mapping: WeightMapping) -> dict[str, LocalTensor]:
    """This rank's weights by their Megatron name in the whole model; its adapters' if the mapping is theirs.

    Raises:
        SlimeError: a parameter that no rule names, or tensor parallelism that cuts through a key/value head.
    """
    found: dict[str, LocalTensor] = {}
    for module in modules:
        layers = {f"{name}.weight": layer for name, layer in module.named_modules(remove_duplicate=False)}
        for name, tensor in _weights(module):
            if getattr(tensor, "of_adapter", False) == mapping.adapts:
                whole = _whole_model_name(module, name)
                found[whole] = replace(_local_tensor(whole, tensor, mapping), layer=layers.get(name))
    return found


def _weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in module.state_dict(keep_vars=True).items():
        if name.endswith(_GROUPED_EXPERTS):
            yield from _single_experts(module, name, value)
        elif not name.endswith("_extra_state"):  # Transformer Engine's bookkeeping; empty in our specs
            yield name, value


def _single_experts(module: torch.nn.Module, name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Views of the grouped experts' parameter, under the names and in the shapes that single experts have.

    `GroupedMLP` keeps the transposed weights of all experts of a rank, concatenated, [experts * hidden, 2 * ffn]
    and [experts * ffn, hidden], the first of them in a parameter of shape [hidden, experts * 2 * ffn].
    """
    prefix, _, kind = name.rpartition(".")
    experts: Any = module.get_submodule(prefix)
    is_first = kind == "weight1"
    hidden_size = experts.config.hidden_size
    shape = (hidden_size, -1) if is_first else (-1, hidden_size)
    for index, weight in enumerate(value.detach().view(experts.num_local_experts, *shape)):
        single: Any = weight.t()
        single.tensor_model_parallel = value.tensor_model_parallel  # type: ignore[attr-defined]
        single.partition_dim = 0 if is_first else 1
        yield f"{prefix}.local_experts.{index}.linear_fc{1 if is_first else 2}.weight", single


def _whole_model_name(module: torch.nn.Module, name: str) -> str:
    """`decoder.layers.0` of this pipeline stage and `local_experts.0` of this rank, renumbered over the model."""
    layer = _LAYER.match(name)
    if not layer:
        return name
    of_stage: Any = module.get_submodule(layer[0].removesuffix("."))
    if layer[1]:
        name = _LAYER.sub(f"decoder.layers.{of_stage.layer_number - 1}.", name)
    expert = _EXPERT.search(name)
    return _EXPERT.sub(f".local_experts.{of_stage.mlp.local_expert_indices[int(expert[1])]}.", name) if expert else name


def _local_tensor(name: str, tensor: torch.Tensor, mapping: WeightMapping) -> LocalTensor:
    entry = mapping.by_megatron_name.get(name)
    if entry is None:
        raise SlimeError(
            f"no rule of the weight mapping names the parameter '{name}'",
            where="weight_mapping",
            todo=f"The plugin's block_spec must agree with it (nearest: {nearest(name, mapping.by_megatron_name)}).",
        )
    shard = _shard(entry, tensor)
    num_units = entry.rule.layout.num_units
    if num_units and num_units % shard.size:
        raise SlimeError(
            f"the {num_units} key/value heads of '{name}' cannot be cut into {shard.size} equal parts",
            where="train.megatron.tensor_model_parallel_size",
            todo=f"Choose a divisor of {num_units}.",
        )
    is_copy = getattr(tensor, "shared", False)  # Megatron's mark on what the last stage holds of the embeddings
    return LocalTensor(entry, tensor, shard, is_copy)


def _shard(entry: Entry, tensor: torch.Tensor) -> Shard:
    """What Megatron's own marks on the parameter say; a parameter without them is replicated."""
    if not getattr(tensor, "tensor_model_parallel", False):
        return Shard()
    of_experts = parallel_state.get_expert_tensor_parallel_group
    group = of_experts() if entry.rule.per_expert else parallel_state.get_tensor_model_parallel_group()
    return Shard(group.rank(), group.size(), tensor.partition_dim)  # type: ignore[attr-defined]
