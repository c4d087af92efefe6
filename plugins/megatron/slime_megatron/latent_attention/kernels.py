"""Queries, keys and values of latent attention in two passes forward and two backward: each entry is read once and
written once, where splitting, joining and copying in turn would move it three times.

Shape letters: t tokens, h heads, n size of the part that is not turned, r rotary size, v size of a value.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from slime_megatron.transformer.rotary.kernels import turn

_BLOCK_HEADS = 8


def heads_in_two_passes(
    query: Tensor, up: Tensor, turning: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`.heads.Heads`. Only cos and sin are kept for backward."""
    key, value = _KeysAndValues.apply(up, turning, cos, sin, query.size(2) - turning.size(1))  # type: ignore[no-untyped-call]
    return _Queries.apply(query, cos, sin), key, value  # type: ignore[no-untyped-call]


class _Queries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(query, cos, sin, inverse=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _turned(grads[0], *ctx.saved_tensors, inverse=True), None, None


class _KeysAndValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, up: Tensor, turning: Tensor, cos: Tensor, sin: Tensor, size: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        up, turning = _dense(up), turning.contiguous()
        num_tokens, num_heads, _ = up.shape
        key = up.new_empty(num_tokens, num_heads, size + turning.size(1))
        value = up.new_empty(num_tokens, num_heads, up.size(2) - size)
        grid = (num_tokens, triton.cdiv(num_heads, _BLOCK_HEADS))
        _split_kernel[grid](
            up, turning, key, value, cos, sin, num_heads, *up.stride()[:2], **_sizes(size, value.size(2), cos)
        )
        return key, value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        of_key, of_value = map(_dense, grads)
        cos, sin = ctx.saved_tensors
        num_tokens, num_heads, value_size = of_value.shape
        size = of_key.size(2) - 2 * cos.size(1)
        of_up = of_key.new_empty(num_tokens, num_heads, size + value_size)
        of_turning = of_key.new_empty(num_tokens, 2 * cos.size(1))
        strides = (*of_key.stride()[:2], *of_value.stride()[:2])
        _join_kernel[(num_tokens,)](
            of_key, of_value, of_up, of_turning, cos, sin, num_heads, *strides, **_sizes(size, value_size, cos)
        )
        return of_up, of_turning, None, None, None


def _dense(heads: Tensor) -> Tensor:
    """The entries of a head contiguous."""
    return heads if heads.stride(2) == 1 else heads.contiguous()


def _turned(heads: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool) -> Tensor:
    """[t, h, n + r] with the last r of each head turned."""
    out = heads.new_empty(heads.shape)
    begin, source = heads.size(2) - 2 * cos.size(1), _dense(heads)[:, None]
    turn(source, out[:, None], cos, sin, True, inverse=inverse, offset=begin, block_heads=_BLOCK_HEADS)
    return out


def _sizes(size: int, value_size: int, cos: Tensor) -> dict[str, int]:
    num_pairs = cos.size(1)
    return {
        "SIZE": size,
        "VALUE": value_size,
        "PAIRS": num_pairs,
        "BLOCK_HEADS": _BLOCK_HEADS,
        "BLOCK_SIZE": triton.next_power_of_2(size),
        "BLOCK_VALUE": triton.next_power_of_2(value_size),
        "BLOCK_PAIRS": triton.next_power_of_2(num_pairs),
    }


@triton.jit  # type: ignore[untyped-decorator]
def _split_kernel(  # type: ignore[no-untyped-def]
    up,
    turning,
    key,
    value,
    cos,
    sin,
    num_heads,
    up_token,
    up_head,
    SIZE: tl.constexpr,
    VALUE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    is_head = (head < num_heads)[:, None]
    read = (up + token * up_token + head * up_head)[:, None]
    write = (key + (token * num_heads + head) * (SIZE + 2 * PAIRS))[:, None]
    write_value = (value + (token * num_heads + head) * VALUE)[:, None]

    plain = tl.arange(0, BLOCK_SIZE)[None, :]
    inside = is_head & (plain < SIZE)
    tl.store(write + plain, tl.load(read + plain, mask=inside, other=0.0), mask=inside)
    entry = tl.arange(0, BLOCK_VALUE)[None, :]
    inside = is_head & (entry < VALUE)
    tl.store(write_value + entry, tl.load(read + SIZE + entry, mask=inside, other=0.0), mask=inside)

    pair = tl.arange(0, BLOCK_PAIRS)
    is_pair = pair < PAIRS
    cosine = tl.load(cos + token * PAIRS + pair, mask=is_pair, other=0.0)
    sine = tl.load(sin + token * PAIRS + pair, mask=is_pair, other=0.0)
    x = tl.load(turning + token * 2 * PAIRS + 2 * pair, mask=is_pair, other=0.0).to(tl.float32)
    y = tl.load(turning + token * 2 * PAIRS + 2 * pair + 1, mask=is_pair, other=0.0).to(tl.float32)
    inside, first = is_head & is_pair[None, :], SIZE + 2 * pair[None, :]
    zeros = tl.zeros([BLOCK_HEADS, BLOCK_PAIRS], tl.float32)
    tl.store(write + first, zeros + (x * cosine - y * sine)[None, :], mask=inside)
    tl.store(write + first + 1, zeros + (y * cosine + x * sine)[None, :], mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _join_kernel(  # type: ignore[no-untyped-def]
    of_key,
    of_value,
    of_up,
    of_turning,
    cos,
    sin,
    num_heads,
    key_token,
    key_head,
    value_token,
    value_head,
    SIZE: tl.constexpr,
    VALUE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    plain, entry = tl.arange(0, BLOCK_SIZE)[None, :], tl.arange(0, BLOCK_VALUE)[None, :]
    pair = tl.arange(0, BLOCK_PAIRS)
    is_pair, first = pair < PAIRS, SIZE + 2 * pair[None, :]
    of_first, of_second = tl.zeros([BLOCK_PAIRS], tl.float32), tl.zeros([BLOCK_PAIRS], tl.float32)
    for begin in range(0, num_heads, BLOCK_HEADS):  # one program a token: all heads share its turned part
        head = begin + tl.arange(0, BLOCK_HEADS)
        is_head = (head < num_heads)[:, None]
        read = (of_key + token * key_token + head * key_head)[:, None]
        read_value = (of_value + token * value_token + head * value_head)[:, None]
        write = (of_up + (token * num_heads + head) * (SIZE + VALUE))[:, None]
        inside = is_head & (plain < SIZE)
        tl.store(write + plain, tl.load(read + plain, mask=inside, other=0.0), mask=inside)
        inside = is_head & (entry < VALUE)
        tl.store(write + SIZE + entry, tl.load(read_value + entry, mask=inside, other=0.0), mask=inside)
        inside = is_head & is_pair[None, :]
        of_first += tl.sum(tl.load(read + first, mask=inside, other=0.0).to(tl.float32), axis=0)
        of_second += tl.sum(tl.load(read + first + 1, mask=inside, other=0.0).to(tl.float32), axis=0)
    cosine = tl.load(cos + token * PAIRS + pair, mask=is_pair, other=0.0)
    sine = tl.load(sin + token * PAIRS + pair, mask=is_pair, other=0.0)
    write_turning = of_turning + token * 2 * PAIRS + 2 * pair
    tl.store(write_turning, of_first * cosine + of_second * sine, mask=is_pair)
    tl.store(write_turning + 1, of_second * cosine - of_first * sine, mask=is_pair)
