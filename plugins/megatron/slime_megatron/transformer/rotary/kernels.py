"""Rotary position embedding (Su et al. 2021) of packed queries and keys, read where the projection left them.

Shape letters: t tokens, g key-value groups, m query heads a group, d head size, r rotated pairs (2r <= d).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """`.module.Rotate` in one pass."""
    result: Tensor = _Rotate.apply(heads, cos, sin, interleaved)  # type: ignore[no-untyped-call]
    return result


def split_and_rotate(qkv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`.module.SplitAndRotate` in one pass; what it returns does not keep `qkv` alive."""
    query, key, value = _SplitAndRotate.apply(qkv, cos, sin, interleaved)  # type: ignore[no-untyped-call]
    return query, key, value


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
        turn(heads[:, None], out[:, None], cos, sin, interleaved, inverse=False)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_out = grads[0].contiguous()
        grad_in = torch.empty_like(grad_out)
        cos, sin = ctx.saved_tensors
        turn(grad_out[:, None], grad_in[:, None], cos, sin, ctx.interleaved, inverse=True)
        return grad_in, None, None, None


class _SplitAndRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        num_tokens, num_groups, num_heads, size = qkv.shape
        query = qkv.new_empty(num_tokens, num_groups, num_heads - 2, size)
        key = qkv.new_empty(num_tokens, num_groups, 1, size)
        turn(qkv[:, :, :-2], query, cos, sin, interleaved, inverse=False)
        turn(qkv[:, :, -2:-1], key, cos, sin, interleaved, inverse=False)
        return query.flatten(1, 2), key[:, :, 0], qkv[:, :, -1].contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_query, grad_key, grad_value = (grad.contiguous() for grad in grads)
        cos, sin = ctx.saved_tensors
        num_tokens, num_groups, size = grad_key.shape
        grad_query = grad_query.view(num_tokens, num_groups, -1, size)
        grad_qkv = grad_query.new_empty(num_tokens, num_groups, grad_query.size(2) + 2, size)
        turn(grad_query, grad_qkv[:, :, :-2], cos, sin, ctx.interleaved, inverse=True)
        turn(grad_key[:, :, None], grad_qkv[:, :, -2:-1], cos, sin, ctx.interleaved, inverse=True)
        grad_qkv[:, :, -1].copy_(grad_value)
        return grad_qkv, None, None, None


def turn(
    source: Tensor,
    target: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    *,
    inverse: bool,
    offset: int = 0,
    block_heads: int = 16,
) -> None:
    """Write `source` [t, g, m, d], turned, to `target` of the same shape; any strides but the last.

    Args:
        offset: where the turned part of a head begins, which is at its start or ends with it.
        block_heads: of one program.
    """
    assert source.stride(3) == target.stride(3) == 1, "a head lies in one piece"
    num_tokens, num_groups, num_heads, size = source.shape
    num_pairs = cos.size(1)
    _turn_kernel[(num_tokens, triton.cdiv(num_groups * num_heads, block_heads))](
        source,
        target,
        cos,
        sin,
        num_groups * num_heads,
        num_heads,
        *source.stride()[:3],
        *target.stride()[:3],
        PAIRS=num_pairs,
        SIZE=size,
        OFFSET=offset,
        INTERLEAVED=interleaved,
        INVERSE=inverse,
        BLOCK_HEADS=block_heads,
        BLOCK_PAIRS=triton.next_power_of_2(num_pairs),
        BLOCK_REST=triton.next_power_of_2(max(1, size - 2 * num_pairs)),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _turn_kernel(  # type: ignore[no-untyped-def]
    source,
    target,
    cos,
    sin,
    num_heads,
    heads_per_group,
    source_token,
    source_group,
    source_head,
    target_token,
    target_group,
    target_head,
    PAIRS: tl.constexpr,
    SIZE: tl.constexpr,
    OFFSET: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    is_head = head < num_heads
    group, member = head // heads_per_group, head % heads_per_group
    read = (source + token * source_token + group * source_group + member * source_head)[:, None]
    write = (target + token * target_token + group * target_group + member * target_head)[:, None]

    pair = tl.arange(0, BLOCK_PAIRS)
    cosine = tl.load(cos + token * PAIRS + pair, mask=pair < PAIRS, other=0.0)[None, :]
    sine = tl.load(sin + token * PAIRS + pair, mask=pair < PAIRS, other=0.0)[None, :]
    if INVERSE:
        sine = -sine
    if INTERLEAVED:
        first, second = (OFFSET + 2 * pair)[None, :], (OFFSET + 2 * pair + 1)[None, :]
    else:
        first, second = (OFFSET + pair)[None, :], (OFFSET + pair + PAIRS)[None, :]
    inside = is_head[:, None] & (pair < PAIRS)[None, :]
    x = tl.load(read + first, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(read + second, mask=inside, other=0.0).to(tl.float32)
    tl.store(write + first, x * cosine - y * sine, mask=inside)
    tl.store(write + second, y * cosine + x * sine, mask=inside)

    if SIZE > 2 * PAIRS:
        begin: tl.constexpr = 0 if OFFSET else 2 * PAIRS
        rest = (begin + tl.arange(0, BLOCK_REST))[None, :]
        inside = is_head[:, None] & (rest < begin + SIZE - 2 * PAIRS)
        tl.store(write + rest, tl.load(read + rest, mask=inside, other=0.0), mask=inside)
