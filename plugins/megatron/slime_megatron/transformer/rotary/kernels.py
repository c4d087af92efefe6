"""Rotary position embedding (Su et al. 2021) of packed queries and keys, read where the projection left them.

Shape letters: t tokens, g key-value groups, m query heads a group, d head size, r rotated pairs (2r <= d).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_HEADS = 16


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
        _turn(heads[:, None], out[:, None], cos, sin, interleaved, inverse=False)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_out = grads[0].contiguous()
        grad_in = torch.empty_like(grad_out)
        cos, sin = ctx.saved_tensors
        _turn(grad_out[:, None], grad_in[:, None], cos, sin, ctx.interleaved, inverse=True)
        return grad_in, None, None, None


class _SplitAndRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        num_tokens, num_groups, num_heads, size = qkv.shape
        query = qkv.new_empty(num_tokens, num_groups, num_heads - 2, size)
        key = qkv.new_empty(num_tokens, num_groups, 1, size)
        _turn(qkv[:, :, :-2], query, cos, sin, interleaved, inverse=False)
        _turn(qkv[:, :, -2:-1], key, cos, sin, interleaved, inverse=False)
        return query.flatten(1, 2), key[:, :, 0], qkv[:, :, -1].contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_query, grad_key, grad_value = (grad.contiguous() for grad in grads)
        cos, sin = ctx.saved_tensors
        num_tokens, num_groups, size = grad_key.shape
        grad_query = grad_query.view(num_tokens, num_groups, -1, size)
        grad_qkv = grad_query.new_empty(num_tokens, num_groups, grad_query.size(2) + 2, size)
        _turn(grad_query, grad_qkv[:, :, :-2], cos, sin, ctx.interleaved, inverse=True)
        _turn(grad_key[:, :, None], grad_qkv[:, :, -2:-1], cos, sin, ctx.interleaved, inverse=True)
        grad_qkv[:, :, -1].copy_(grad_value)
        return grad_qkv, None, None, None


def _turn(source: Tensor, target: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, *, inverse: bool) -> None:
    """Write `source` [t, g, m, d], turned, to `target` of the same shape; any strides but the last."""
    assert source.stride(3) == target.stride(3) == 1, "a head lies in one piece"
    num_tokens, num_groups, num_heads, size = source.shape
    num_pairs = cos.size(1)
    _turn_kernel[(num_tokens, triton.cdiv(num_groups * num_heads, _BLOCK_HEADS))](
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
        INTERLEAVED=interleaved,
        INVERSE=inverse,
        BLOCK_HEADS=_BLOCK_HEADS,
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
        first, second = (2 * pair)[None, :], (2 * pair + 1)[None, :]
    else:
        first, second = pair[None, :], (pair + PAIRS)[None, :]
    inside = is_head[:, None] & (pair < PAIRS)[None, :]
    x = tl.load(read + first, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(read + second, mask=inside, other=0.0).to(tl.float32)
    tl.store(write + first, x * cosine - y * sine, mask=inside)
    tl.store(write + second, y * cosine + x * sine, mask=inside)

    if SIZE > 2 * PAIRS:
        rest = (2 * PAIRS + tl.arange(0, BLOCK_REST))[None, :]
        inside = is_head[:, None] & (rest < SIZE)
        tl.store(write + rest, tl.load(read + rest, mask=inside, other=0.0), mask=inside)
