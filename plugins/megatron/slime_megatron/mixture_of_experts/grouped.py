"""The products of a rank's experts in one call, whose weight gradients are summed in fp32 as they are computed.

Shape letters: r rows, g experts of this rank, h hidden size, f size of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from megatron.core.transformer.moe.experts import GroupedMLP
from torch import Tensor

from megatron_core_portable import add_product
from slime_megatron.mixture_of_experts.exchange import OnHost
from slime_megatron.train.model.linear import device_of
from slime_megatron.transformer.mlp.activation import swiglu

SMALL_PRODUCT = 8e9
"""Multiplications and additions of an expert's weight gradient up to which Triton adds those of all experts faster than
cuBLAS, called for each, on an H200 (`benchmarks/results/train-h200.md`)."""


class Groups:
    """How many rows each expert of this rank has; counts: [ranks, g] of the rows from each rank, on the device and on
    their way to the host."""

    def __init__(self, counts: Tensor, on_host: OnHost) -> None:
        self._counts, self._on_host = counts, on_host

    @cached_property
    def ends(self) -> Tensor:
        """[g] int32 on the device: where the rows of each expert end."""
        return self._counts.sum(dim=0).cumsum(0).to(torch.int32)

    @cached_property
    def sizes(self) -> Tensor:
        """[g] on the host, which waits for them."""
        return self._on_host.values.sum(dim=0)

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """[r, ...] into those of each expert."""
        return torch.split(rows, self.sizes.tolist())


class GroupedExperts(GroupedMLP):  # type: ignore[misc]
    """Megatron-core's experts with the parameters it gives them. Gated by silu, as all models with experts are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        chosen = self.config.gated_linear_unit, self.config.activation_func
        assert chosen == (True, F.silu), "no bridge states another"
        self.activate = swiglu(device_of(self.config))

    def forward(self, rows: Tensor, groups: Groups, probabilities: Tensor) -> tuple[Tensor, None]:
        """[r, h], by expert, and the weight of each row [r] -> [r, h], and no bias."""
        gate_up = self.product("weight1", rows, groups)
        again = CheckpointWithoutOutput(fp8=None) if self.activation_recompute and self.training else None
        given = gate_up, probabilities
        inner = again.checkpoint(self.activate, *given) if again else self.activate(*given)
        result = self.product("weight2", inner, groups)
        if again:
            again.discard_output_and_register_recompute(result)
        return result, None

    def product(self, name: str, rows: Tensor, groups: Groups) -> Tensor:
        """[r, k] times the matrix of each row's expert in the parameter `name` -> [r, n]."""
        fused = self.config.gradient_accumulation_fusion
        return product(rows, getattr(self, name), self.shape_of(name), groups, fused=fused)

    def shape_of(self, name: str) -> tuple[int, int, int]:
        """Of the experts' matrices, as which `weight1` and `weight2` are multiplied: [g, k, n]."""
        hidden = self.config.hidden_size
        return (self.num_local_experts, hidden, -1) if name == "weight1" else (self.num_local_experts, -1, hidden)


def product(rows: Tensor, weight: Tensor, shape: Sequence[int], groups: Groups, *, fused: bool) -> Tensor:
    """[r, k] times the matrix [k, n] of each row's expert -> [r, n].

    Args:
        weight: of `shape` [g, k, n], as one parameter of another shape.
        fused: its gradient is added to `weight.main_grad`, where Megatron-core sums gradients in fp32.
    """
    result: Tensor = _Product.apply(rows, weight, tuple(shape), groups, fused)  # type: ignore[no-untyped-call]
    return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, shape: Sequence[int], groups: Groups, fused: bool) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.weight = weight  # the parameter itself, which has `main_grad`
        ctx.shape, ctx.groups, ctx.fused = shape, groups, fused
        return multiplied(rows, weight.view(shape), groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (rows,), weight, groups = ctx.saved_tensors, ctx.weight, ctx.groups
        gradient = gradient.contiguous()
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = multiplied(gradient, weight.view(ctx.shape).transpose(1, 2), groups)
        if ctx.needs_input_grad[1] and ctx.fused:
            of_weight = _add_weight_gradient(rows, gradient, weight, ctx.shape, groups)
        elif ctx.needs_input_grad[1]:
            of_weight = weight_gradient(rows, gradient, groups).view_as(weight)
        return of_rows, of_weight, None, None, None


def multiplied(rows: Tensor, matrices: Tensor, groups: Groups) -> Tensor:
    """[r, k], [g, k, n] -> [r, n]."""
    if len(rows) and _in_one_call(rows):
        return torch._grouped_mm(rows, matrices, offs=groups.ends)
    return torch.cat([part @ matrix for part, matrix in zip(groups.split(rows), matrices, strict=True)])


def weight_gradient(rows: Tensor, gradient: Tensor, groups: Groups) -> Tensor:
    """[g, k, n], of rows [r, k] and the gradient [r, n] of their product."""
    if len(rows) and _in_one_call(rows):
        return torch._grouped_mm(rows.t(), gradient, offs=groups.ends)
    pairs = zip(groups.split(rows), groups.split(gradient), strict=True)
    return torch.stack([of_rows.t() @ of_result for of_rows, of_result in pairs])


def _add_weight_gradient(rows: Tensor, gradient: Tensor, weight: Any, shape: Sequence[int], groups: Groups) -> Tensor:
    """The same, into `weight.main_grad`. What is returned only tells Megatron-core that it is there."""
    totals = weight.main_grad.view(shape)
    if _in_one_call(rows) and len(rows) / len(totals) * totals[0].numel() <= SMALL_PRODUCT:
        from slime_megatron.mixture_of_experts.kernels import add_weight_gradients

        add_weight_gradients(totals, rows, gradient, groups.ends)
    else:
        add_on_two_streams(list(zip(totals, groups.split(rows), groups.split(gradient), strict=True)))
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)


def add_on_two_streams(products: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Add to each total [k, n] the product of an expert's rows [r, k] and gradient [r, n].

    On a GPU every other one on a second stream: a product does not fill the device in its last round, and the next one
    begins there.
    """
    device = products[0][0].device
    if device.type != "cuda":
        add_one_by_one(products)
        return
    now, beside = torch.cuda.current_stream(device), _second_stream(device)
    beside.wait_stream(now)
    with torch.cuda.stream(beside):
        add_one_by_one(products[1::2])
    add_one_by_one(products[::2])
    now.wait_stream(beside)  # what is read here is not freed for others before


def add_one_by_one(products: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """The same on one stream."""
    for total, of_rows, of_result in products:
        if len(of_rows):
            add_product(total, of_rows.t(), of_result)


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _in_one_call(rows: Tensor) -> bool:
    return rows.is_cuda and rows.dtype == torch.bfloat16
