"""The weight gradients of all experts of a rank in one call, added to fp32 sums as they are computed; and sums of the
rows of each token, which are read once.

A product for each expert takes a launch each, and an expert's few rows leave part of the device idle.
Shape letters: r rows, g experts of this rank, k and n sizes of a weight; t tokens, h hidden size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_K, _BLOCK_N, _BLOCK_ROWS = 256, 128, 64
_NUM_WARPS, _NUM_STAGES = 8, 4
_BLOCK_HIDDEN = 1024


def add_weight_gradients(totals: Tensor, rows: Tensor, gradient: Tensor, ends: Tensor) -> None:
    """Add `rows[of expert].T @ gradient[of expert]` to each expert's total. The same sums in every run.

    Args:
        totals: [g, k, n] fp32, contiguous.
        rows: [r, k] bf16 (or fp32), those of an expert contiguous.
        gradient: [r, n], of the same type.
        ends: [g] int32, where the rows of each expert end.
    """
    num_experts, k, n = totals.shape
    assert totals.is_contiguous(), "an expert's total lies in one piece"
    grid = (triton.cdiv(k, _BLOCK_K) * triton.cdiv(n, _BLOCK_N), num_experts)
    _add_kernel[grid](
        totals,
        rows.contiguous(),
        gradient.contiguous(),
        ends,
        K=k,
        N=n,
        BLOCK_K=_BLOCK_K,
        BLOCK_N=_BLOCK_N,
        BLOCK_ROWS=_BLOCK_ROWS,
        num_warps=_NUM_WARPS,
        num_stages=_NUM_STAGES,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _add_kernel(  # type: ignore[no-untyped-def]
    totals,
    rows,
    gradient,
    ends,
    K: tl.constexpr,
    N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    tile, expert = tl.program_id(0), tl.program_id(1)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    if begin == end:
        return
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    k = (tile // tiles_n) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = (tile % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_k, inside_n = (k < K)[None, :], (n < N)[None, :]
    total = tl.zeros([BLOCK_K, BLOCK_N], tl.float32)
    for first in range(begin, end, BLOCK_ROWS):
        row = first + tl.arange(0, BLOCK_ROWS)
        inside, place = (row < end)[:, None], row.to(tl.int64)[:, None]
        left = tl.load(rows + place * K + k[None, :], mask=inside & inside_k, other=0.0)
        right = tl.load(gradient + place * N + n[None, :], mask=inside & inside_n, other=0.0)
        total = tl.dot(tl.trans(left), right, total, input_precision="ieee")
    places = totals + expert.to(tl.int64) * K * N + k.to(tl.int64)[:, None] * N + n[None, :]
    inside = (k < K)[:, None] & inside_n
    tl.store(places, tl.load(places, mask=inside, other=0.0) + total, mask=inside)


def sums_of_rows(rows: Tensor, places: Tensor) -> Tensor:
    """[t, h] sums in fp32, rounded once, of the rows of each token.

    Args:
        rows: [r, h].
        places: [t, rows of a token] int64.
    """
    rows, places = rows.contiguous(), places.contiguous()
    num_tokens, num_rows = places.shape
    sums = torch.empty(num_tokens, rows.size(1), dtype=rows.dtype, device=rows.device)
    grid = (num_tokens, triton.cdiv(rows.size(1), _BLOCK_HIDDEN))
    _sum_kernel[grid](rows, places, sums, HIDDEN=rows.size(1), ROWS=num_rows, BLOCK=_BLOCK_HIDDEN)
    return sums


@triton.jit  # type: ignore[untyped-decorator]
def _sum_kernel(  # type: ignore[no-untyped-def]
    rows, places, sums, HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    token, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for number in tl.static_range(ROWS):
        place = tl.load(places + token * ROWS + number)
        total += tl.load(rows + place * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + token * HIDDEN + column, total, mask=inside)
