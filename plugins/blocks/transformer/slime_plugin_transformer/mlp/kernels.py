"""SwiGLU: silu(gate) * up in one pass forward and one backward.

Shape letters: n rows, f features of gate and of up.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020) of [gate | up] [..., 2f] -> [..., f]. Only the input is kept for backward."""
    result: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
    return result


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        out = gate_up.new_empty(*gate_up.shape[:-1], gate_up.size(-1) // 2)
        _forward[_grid(out)](gate_up, out, out.size(-1), BLOCK=_BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        grad_out, grad_in = grads[0].contiguous(), torch.empty_like(gate_up)
        _backward[_grid(grad_out)](gate_up, grad_out, grad_in, grad_out.size(-1), BLOCK=_BLOCK)
        return grad_in


def _grid(out: Tensor) -> tuple[int, int]:
    """One program a row and block of features."""
    return out.numel() // out.size(-1), triton.cdiv(out.size(-1), _BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(gate_up, out, num_features, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_features
    gate = tl.load(gate_up + row * 2 * num_features + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * num_features + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * num_features + column, gate * tl.sigmoid(gate) * up, mask=inside)


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
