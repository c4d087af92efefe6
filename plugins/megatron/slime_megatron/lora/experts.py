"""Adapters of routed experts whose products are made in one call.

Their weights are one parameter of all experts of a rank. Each expert's adapters have a module under the name that a
single expert has, so that tables, checkpoints and exports are those of experts that are layers of their own.

Shape letters: r rows, g experts of this rank, k input and n output of a matrix, l rank of its adapters together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.moe.experts import GroupedMLP, SequentialMLP
from torch import Tensor, nn

from slime_megatron.lora.layers import KINDS, Learn, Lora
from slime_megatron.mixture_of_experts.grouped import GroupedExperts, Groups, multiplied, product, weight_gradient
from slime_megatron.train.model.linear import sharded, whole_weight

_LINEARS = {"linear_fc1": "weight1", "linear_fc2": "weight2"}
"""Layers of an expert, and the parameters that are theirs of all experts."""
_ALIGNED = 8
"""Columns that a matrix has a multiple of: 16 bytes in bf16, as `torch._grouped_mm` asks."""


def make_room(module: nn.Module, linears: Collection[str]) -> None:
    """Give grouped experts modules for the adapters of `linears`, names of an expert's layers."""
    for experts in [each for each in module.modules() if isinstance(each, GroupedMLP)]:
        assert type(experts) is GroupedExperts, "others are refused when a run is planned"
        experts.__class__ = LoraGroupedExperts
        count = experts.num_local_experts
        experts.local_experts = nn.ModuleList(_Expert(experts, index, sorted(linears)) for index in range(count))


class ExpertMatrix(nn.Module):
    """A layer of one expert, which computes nothing alone."""

    is_expert = True

    def __init__(self, experts: GroupedExperts, name: str, index: int) -> None:
        super().__init__()
        self._of = experts, name, index  # in a tuple, as the experts are no part of this module

    @property
    def weight(self) -> Any:
        """[n, k] the part of the parameter."""
        experts, name, index = self._of
        whole = getattr(experts, name)
        part = whole.view(experts.shape_of(name))[index].t()
        part.allreduce = whole.allreduce
        return part


class LoraExpertMatrix(Lora, ExpertMatrix):
    """With adapters."""


KINDS[ExpertMatrix] = LoraExpertMatrix


class _Expert(nn.Module):
    """The adapters of one expert."""

    def __init__(self, experts: GroupedExperts, index: int, linears: Sequence[str]) -> None:
        super().__init__()
        self._tp_group = experts.tp_group
        for linear in linears:
            self.add_module(linear, ExpertMatrix(experts, _LINEARS[linear], index))

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return sharded(self.state_dict(keep_vars=True), self._tp_group, prefix, sharded_offsets, metadata)


class LoraGroupedExperts(GroupedExperts):
    """Experts with adapters. Products are with the rounded sums, as those of all layers (`slime_megatron.lora.layers`).

    Attributes:
        local_experts: the adapters of each.
    """

    local_experts: nn.ModuleList

    def product(self, name: str, rows: Tensor, groups: Groups) -> Tensor:
        """See `GroupedExperts`."""
        linear = next(linear for linear, parameter in _LINEARS.items() if parameter == name)
        matrices: list[Any] = [getattr(expert, linear, None) for expert in self.local_experts]
        if not isinstance(matrices[0], Lora):
            return super().product(name, rows, groups)
        return adapted(rows, matrices, groups)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """That of the experts, who take all they have for weights, and that of the adapters of single ones."""
        adapters = self._modules.pop("local_experts")
        try:
            weights: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        finally:
            self._modules["local_experts"] = adapters
        of_single: dict[str, Any] = SequentialMLP.sharded_state_dict(self, prefix, sharded_offsets, metadata)
        return weights | of_single


def adapted(rows: Tensor, matrices: Sequence[LoraExpertMatrix], groups: Groups) -> Tensor:
    """[r, k] times the sum of weight and adapter of each row's expert -> [r, n]."""
    output = _Merged.apply(rows, matrices, groups)  # type: ignore[no-untyped-call]
    down = torch.stack([matrix.down() for matrix in matrices]).transpose(1, 2)
    up = torch.stack([matrix.up() for matrix in matrices]).transpose(1, 2)
    more = -down.size(2) % _ALIGNED
    down, up = F.pad(down, (0, more)), F.pad(up, (0, 0, 0, more))
    low = product(rows.detach(), down, down.shape, groups, fused=False) * matrices[0].lora_scale
    of_factors = partial(_of_factors, groups=groups)
    result: Tensor = Learn.apply(output, low, up, of_factors)  # type: ignore[no-untyped-call]
    return result


def _of_factors(gradient: Tensor, low: Tensor, up: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """See `Learn`, of [r, n], [r, l] and [g, l, n]."""
    gradient = gradient.contiguous()
    return multiplied(gradient, up.transpose(1, 2), groups), weight_gradient(low, gradient, groups)


class _Merged(torch.autograd.Function):
    """Products with the rounded sums of weights and adapters, which are made again for the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Sequence[LoraExpertMatrix], groups: Groups) -> Tensor:
        """[r, k] -> [r, n]."""
        ctx.matrices, ctx.groups = matrices, groups
        return multiplied(rows, _merged(matrices).transpose(1, 2), groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return multiplied(gradient.contiguous(), _merged(ctx.matrices), ctx.groups), None, None


@torch.no_grad()
def _merged(matrices: Sequence[LoraExpertMatrix]) -> Tensor:
    """[g, n, k] the rounded sums; beside them there is one of a single expert in fp32."""
    first = matrices[0].weight
    found: Tensor = first.new_empty(len(matrices), *first.shape)
    for into, matrix in zip(found, matrices, strict=True):
        into.copy_(whole_weight(matrix))
    return found
