"""Sums of products in fp32: how gradients of bf16 weights reach their fp32 buffers."""

from __future__ import annotations

import torch
from torch import Tensor


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in place; on CUDA one cuBLAS call also where fp32 sums products of bf16.

    Args:
        total: [m, n] of the operands' dtype or fp32.
        left, right: [m, k], [k, n] of one dtype.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)
    else:
        total.add_(left @ right)
