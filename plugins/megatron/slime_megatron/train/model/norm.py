"""Root-mean-square norm in one pass forward and one backward, where torch's backward reads the gradient twice.

Shape letters: r rows, h hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_PARTS = 512
"""Programs that share the rows in the backward pass; each has a sum of the weight's gradient of its own."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool) -> Tensor:
    """[..., h] -> the same shape and type; computed in fp32 and rounded once. The same gradients in every run.

    Args:
        weight: [h].
        zero_centered: the factor is 1 + weight.
    """
    result: Tensor = _RMSNorm.apply(x, weight, eps, zero_centered)  # type: ignore[no-untyped-call]
    return result


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, zero_centered: bool) -> Tensor:
        rows = _rows(x)
        out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        scales = torch.empty(len(rows), dtype=torch.float32, device=x.device)
        sizes = _sizes(rows.size(1), zero_centered)
        if len(rows):
            _forward[(len(rows),)](rows, weight, out, scales, rows.stride(0), eps, **sizes)
        ctx.save_for_backward(x, weight, scales)
        ctx.zero_centered = zero_centered
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scales = ctx.saved_tensors
        rows, of_rows = _rows(x), _rows(gradient)
        of_x = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        num_parts = max(1, min(_PARTS, len(rows)))
        of_weight = torch.zeros(num_parts, rows.size(1), dtype=torch.float32, device=x.device)
        strides = rows.stride(0), of_rows.stride(0)
        sizes = _sizes(rows.size(1), ctx.zero_centered)
        _backward[(num_parts,)](rows, weight, of_rows, scales, of_x, of_weight, len(rows), num_parts, *strides, **sizes)
        return of_x.view(x.shape), of_weight.sum(dim=0).to(weight.dtype), None, None


def _rows(x: Tensor) -> Tensor:
    """[r, h], the entries of a row contiguous."""
    rows = x.reshape(-1, x.size(-1))
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _sizes(hidden_size: int, zero_centered: bool) -> dict[str, int]:
    block = triton.next_power_of_2(hidden_size)
    return {
        "HIDDEN": hidden_size,
        "ONE": int(zero_centered),
        "BLOCK": block,
        "num_warps": min(16, max(1, block // 512)),
    }


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    rows, weight, out, scales, stride, eps, HIDDEN: tl.constexpr, ONE: tl.constexpr, BLOCK: tl.constexpr
):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < HIDDEN
    x = tl.load(rows + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + ONE
    tl.store(out + row * HIDDEN + column, x * scale * factor, mask=inside)
    tl.store(scales + row, scale)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    rows,
    weight,
    of_rows,
    scales,
    of_x,
    of_weight,
    num_rows,
    num_parts,
    stride,
    gradient_stride,
    HIDDEN: tl.constexpr,
    ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < HIDDEN
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + ONE
    total = tl.zeros([BLOCK], tl.float32)
    for number in range(part, num_rows, num_parts):
        row = tl.full((), 0, tl.int64) + number
        scale = tl.load(scales + row)
        normed = tl.load(rows + row * stride + column, mask=inside, other=0.0).to(tl.float32) * scale
        gradient = tl.load(of_rows + row * gradient_stride + column, mask=inside, other=0.0).to(tl.float32)
        total += gradient * normed
        of_normed = gradient * factor
        along = tl.sum(tl.where(inside, of_normed * normed, 0.0), axis=0) / HIDDEN
        tl.store(of_x + row * HIDDEN + column, scale * (of_normed - normed * along), mask=inside)
    tl.store(of_weight + part.to(tl.int64) * HIDDEN + column, total, mask=inside)
