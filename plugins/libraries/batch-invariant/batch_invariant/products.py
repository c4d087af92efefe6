"""Products of matrices in which a row's sums have one order, however many rows there are.

BLAS chooses its kernel, and with it the order of a sum, by the number of rows: a row multiplied alone differs in the
last bits from the same row among 64. Here it is asked for products of one number of rows. GPUs have one kernel for all.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ROWS = 16
"""Of each product that a CPU makes."""


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`: [rows, inner] x [inner, columns] -> [rows, columns], rounded once. No gradient."""
    if left.is_cuda:
        from batch_invariant import kernels

        return kernels.product(left, right)
    rows = left.shape[0]
    padded = F.pad(left, (0, 0, 0, -rows % BLOCK_ROWS)).contiguous()
    found = left.new_empty(padded.shape[0], right.shape[1])
    for start in range(0, len(padded), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        torch.mm(padded[block], right, out=found[block])
    return found[:rows]


def product_and_sum(added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * added + alpha * left @ right`, of which the product is rounded before the sum is."""
    return beta * added + alpha * product(left, right)


@functools.cache
def replace_products(device: str) -> torch.library.Library:
    """Let torch's own `mm` and `addmm` on a device be these, for good: in a program that learns nothing.

    Args:
        device: `CPU` or `CUDA`.

    Returns:
        What has to live as long.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, ours in {"mm": product, "addmm": product_and_sum}.items():
        library.impl(name, ours, device)  # type: ignore[no-untyped-call]
    return library
