"""SwiGLU: silu(gate) * up in one pass forward and one backward, also with a weight for each row.

Shape letters: n rows, f features of gate and of up.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def swiglu(gate_up: Tensor, weights: Tensor | None = None) -> Tensor:
    """silu(gate) * up (Shazeer 2020) of [gate | up] [..., 2f] -> [..., f]. Only the inputs are kept for backward.

    Args:
        weights: [n] of the rows of [n, 2f], which are multiplied in before the result is rounded.
    """
    result: Tensor = _SwiGlu.apply(gate_up, weights)  # type: ignore[no-untyped-call]
    return result


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, weights: Tensor | None) -> Tensor:
        gate_up, weights = gate_up.contiguous(), None if weights is None else weights.contiguous()
        ctx.save_for_backward(gate_up, weights)
        out = gate_up.new_empty(*gate_up.shape[:-1], gate_up.size(-1) // 2)
        if len(out):
            _forward[_grid(out)](gate_up, weights, out, out.size(-1), BLOCK=_BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        gate_up, weights = ctx.saved_tensors
        grad_out, grad_in = grads[0].contiguous(), torch.empty_like(gate_up)
        size = grad_out.size(-1)
        of_weights = None if weights is None else torch.empty_like(weights)
        if len(grad_out) and weights is None:
            _backward[_grid(grad_out)](gate_up, grad_out, grad_in, size, BLOCK=_BLOCK)
        elif len(grad_out):
            outputs = grad_in, of_weights
            _weighted_backward[(len(grad_out),)](gate_up, weights, grad_out, *outputs, size, BLOCK=_BLOCK)
        return grad_in, of_weights


def _grid(out: Tensor) -> tuple[int, int]:
    """One program a row and block of features."""
    return out.numel() // out.size(-1), triton.cdiv(out.size(-1), _BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(gate_up, weights, out, num_features, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_features
    gate = tl.load(gate_up + row * 2 * num_features + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * num_features + column, mask=inside, other=0.0).to(tl.float32)
    activated = gate * tl.sigmoid(gate) * up
    if weights is not None:
        activated *= tl.load(weights + row).to(tl.float32)
    tl.store(out + row * num_features + column, activated, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(gate_up, grad_out, grad_in, num_features, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_features
    first, second = row * 2 * num_features + column, (row * 2 + 1) * num_features + column
    gate = tl.load(gate_up + first, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + second, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_out + row * num_features + column, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    tl.store(grad_in + first, grad * up * sigmoid * (1 + gate * (1 - sigmoid)), mask=inside)
    tl.store(grad_in + second, grad * gate * sigmoid, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _weighted_backward(  # type: ignore[no-untyped-def]
    gate_up, weights, grad_out, grad_in, of_weights, num_features, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    weight = tl.load(weights + row).to(tl.float32)
    of_weight = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, num_features, BLOCK):  # one program a row: its weight's gradient is a sum over the features
        column = begin + tl.arange(0, BLOCK)
        inside = column < num_features
        first, second = row * 2 * num_features + column, (row * 2 + 1) * num_features + column
        gate = tl.load(gate_up + first, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + second, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_out + row * num_features + column, mask=inside, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        of_weight += grad * gate * sigmoid * up
        grad *= weight
        tl.store(grad_in + first, grad * up * sigmoid * (1 + gate * (1 - sigmoid)), mask=inside)
        tl.store(grad_in + second, grad * gate * sigmoid, mask=inside)
    tl.store(of_weights + row, tl.sum(of_weight, axis=0))
