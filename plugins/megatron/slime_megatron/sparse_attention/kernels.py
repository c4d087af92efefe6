"""Triton kernels of sparse attention: they gather the chosen latents, and never build [tokens, tokens].

A program serves one query and a block of its heads, which share the gathered keys. Sums are fp32. The gradient of
the latents is added up with atomic additions, in no fixed order: it repeats up to fp32 rounding.

Shape letters: t queries, T keys, h heads, k chosen keys, d = v + r key size, v value size, r the rest of a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_MIN_HEADS = 16  # the least that a tensor core multiplies
_FORWARD = {16: (64, 4, 2), 32: (64, 4, 2), 64: (64, 8, 2)}
_BACKWARD = {16: (16, 4, 2), 32: (32, 8, 3)}
"""Keys of a tile, warps and pipeline stages, by the heads of a program: the fastest of a sweep on an H200, bf16, sizes
of a 744B-A40B model. More heads a program gather less often, and add up less often in the backward pass."""
_SCORE_QUERIES, _SCORE_KEYS = 4, 128


class TritonSparseAttention(torch.autograd.Function):
    """`slime_megatron.sparse_attention.sparse_attention.sparse_attention`, as kernels."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, latents: Tensor, selected: Tensor, scale: float, value_size: int) -> Tensor:
        query, latents = query.contiguous(), latents.contiguous()
        num_tokens, num_heads, size = query.shape
        output = query.new_empty(num_tokens, num_heads, value_size)
        log_z = query.new_empty(num_tokens, num_heads, dtype=torch.float32)
        sizes = _sizes(_FORWARD, num_heads, selected, value_size, size)
        grid = (num_tokens, triton.cdiv(num_heads, sizes["BLOCK_HEADS"]))
        _forward[grid](query, latents, selected, output, log_z, scale, **sizes)
        ctx.save_for_backward(query, latents, selected, output, log_z)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        query, latents, selected, output, log_z = ctx.saved_tensors
        num_tokens, num_heads, size = query.shape
        grad_query, grad_latents = torch.empty_like(query), torch.zeros_like(latents, dtype=torch.float32)
        sizes = _sizes(_BACKWARD, num_heads, selected, output.size(-1), size)
        grid = (num_tokens, triton.cdiv(num_heads, sizes["BLOCK_HEADS"]))
        tensors = (query, latents, selected, output, log_z, grads[0].contiguous(), grad_query, grad_latents)
        _backward[grid](*tensors, ctx.scale, **sizes)
        return grad_query, grad_latents.to(latents.dtype), None, None, None


def _sizes(
    tiles: Mapping[int, tuple[int, int, int]], num_heads: int, selected: Tensor, value_size: int, size: int
) -> dict[str, int]:
    """The kernels' sizes and how they are launched; tiles are powers of two."""
    block_heads = min(max(tiles), max(_MIN_HEADS, triton.next_power_of_2(num_heads)))
    block_keys, num_warps, num_stages = tiles[block_heads]
    return {
        "num_heads": num_heads,
        "num_selected": selected.size(1),
        "V": value_size,
        "R": size - value_size,
        "TILE_V": triton.next_power_of_2(value_size),
        "TILE_R": max(16, triton.next_power_of_2(size - value_size)),
        "BLOCK_HEADS": block_heads,
        "BLOCK_KEYS": block_keys,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def triton_index_scores(vectors: Tensor, weights: Tensor, keys: Tensor, horizon: int) -> Tensor:
    """[b, m] fp32: sum over heads of weights [b, n] * relu(vectors [b, n, d] . keys [m, d]).

    Query i sees keys up to `horizon + i`; scores of tiles that no query sees are left undefined.
    """
    vectors, weights, keys = vectors.contiguous(), weights.contiguous(), keys.contiguous()
    num_queries, num_heads, size = vectors.shape
    scores = weights.new_empty(num_queries, len(keys))
    grid = (triton.cdiv(num_queries, _SCORE_QUERIES), triton.cdiv(len(keys), _SCORE_KEYS))
    _score[grid](
        vectors,
        weights,
        keys,
        scores,
        num_queries,
        len(keys),
        horizon,
        num_heads=num_heads,
        SIZE=size,
        TILE_SIZE=triton.next_power_of_2(size),
        TILE_HEADS=triton.next_power_of_2(num_heads),
        BLOCK_QUERIES=_SCORE_QUERIES,
        BLOCK_KEYS=_SCORE_KEYS,
        num_warps=8,
    )
    return scores


@triton.jit
def _load_rows(base, rows, kept, columns, width, stride):  # type: ignore[no-untyped-def]
    """A tile of rows; 0 where a row or a column is not kept."""
    pointers = base + rows.to(tl.int64)[:, None] * stride + columns[None]
    return tl.load(pointers, mask=kept[:, None] & (columns < width)[None], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _load_split(base, rows, kept, V: tl.constexpr, R: tl.constexpr, TILE_V: tl.constexpr, TILE_R: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of d = V + R columns as two tiles: the part that is also the value, and the rest."""
    value = _load_rows(base, rows, kept, tl.arange(0, TILE_V), V, V + R)
    rest = _load_rows(base + V, rows, kept, tl.arange(0, TILE_R), R, V + R)
    return value, rest


@triton.jit  # type: ignore[untyped-decorator]
def _query_rows(num_heads: tl.constexpr, BLOCK_HEADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The token of this program, its block of heads as rows of [t * h], and which of them there are."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    return token, token * num_heads + heads, heads < num_heads


@triton.jit  # type: ignore[untyped-decorator]
def _chosen(selected, token, start, num_selected: tl.constexpr, BLOCK_KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of the token's chosen keys; -1 where there is none."""
    k = start + tl.arange(0, BLOCK_KEYS)
    return tl.load(selected + token * num_selected + k, mask=k < num_selected, other=-1)


@triton.jit
def _scores(query_v, query_r, key_v, key_r, scale):  # type: ignore[no-untyped-def]
    """Scaled products; logarithms to the base 2."""
    products = tl.dot(query_v, tl.trans(key_v), input_precision="ieee")
    return tl.dot(query_r, tl.trans(key_r), products, input_precision="ieee") * (scale * 1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    query,
    latents,
    selected,
    output,
    log_z,
    scale,
    num_heads: tl.constexpr,
    num_selected: tl.constexpr,
    V: tl.constexpr,
    R: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_R: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Softmax while it goes (Milakov & Gimelshein 2018)."""
    token, rows, is_head = _query_rows(num_heads, BLOCK_HEADS)
    query_v, query_r = _load_split(query, rows, is_head, V, R, TILE_V, TILE_R)
    peak = tl.full([BLOCK_HEADS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_HEADS], tl.float32)
    mixed = tl.zeros([BLOCK_HEADS, TILE_V], tl.float32)
    for start in range(0, num_selected, BLOCK_KEYS):
        keys = _chosen(selected, token, start, num_selected, BLOCK_KEYS)
        is_key = keys >= 0
        key_v, key_r = _load_split(latents, keys, is_key, V, R, TILE_V, TILE_R)
        scores = tl.where(is_key[None], _scores(query_v, query_r, key_v, key_r, scale), float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        finite = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: no inf - inf
        shrink = tl.exp2(peak - finite)
        weights = tl.exp2(scores - finite[:, None])
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(weights.to(key_v.dtype), key_v, mixed, input_precision="ieee")
        peak = new_peak
    mixed = mixed / total[:, None]
    v = tl.arange(0, TILE_V)
    out = output + rows[:, None] * V + v[None]
    tl.store(out, mixed.to(output.dtype.element_ty), mask=is_head[:, None] & (v < V)[None])
    tl.store(log_z + rows, peak + tl.log2(total), mask=is_head)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    query,
    latents,
    selected,
    output,
    log_z,
    grad_output,
    grad_query,
    grad_latents,
    scale,
    num_heads: tl.constexpr,
    num_selected: tl.constexpr,
    V: tl.constexpr,
    R: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_R: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """With p = softmax(s): ds = p * (dp - sum(p * dp)), where sum(p * dp) = output . grad_output."""
    token, rows, is_head = _query_rows(num_heads, BLOCK_HEADS)
    query_v, query_r = _load_split(query, rows, is_head, V, R, TILE_V, TILE_R)
    v, r = tl.arange(0, TILE_V), tl.arange(0, TILE_R)
    grad = _load_rows(grad_output, rows, is_head, v, V, V)
    out = _load_rows(output, rows, is_head, v, V, V)
    mean_grad = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    norm = tl.load(log_z + rows, mask=is_head, other=float("inf"))  # a head that does not exist weighs nothing
    grad_v = tl.zeros([BLOCK_HEADS, TILE_V], tl.float32)
    grad_r = tl.zeros([BLOCK_HEADS, TILE_R], tl.float32)
    for start in range(0, num_selected, BLOCK_KEYS):
        keys = _chosen(selected, token, start, num_selected, BLOCK_KEYS)
        is_key = keys >= 0
        key_v, key_r = _load_split(latents, keys, is_key, V, R, TILE_V, TILE_R)
        scores = _scores(query_v, query_r, key_v, key_r, scale)
        weights = tl.where(is_key[None], tl.exp2(scores - norm[:, None]), 0.0)
        grad_weights = tl.dot(grad, tl.trans(key_v), input_precision="ieee")
        grad_scores = (weights * (grad_weights - mean_grad[:, None]) * scale).to(key_v.dtype)
        grad_v = tl.dot(grad_scores, key_v, grad_v, input_precision="ieee")
        grad_r = tl.dot(grad_scores, key_r, grad_r, input_precision="ieee")
        grad_key_v = tl.dot(tl.trans(grad_scores), query_v, input_precision="ieee")
        grad_key_v = tl.dot(tl.trans(weights.to(grad.dtype)), grad, grad_key_v, input_precision="ieee")
        grad_key_r = tl.dot(tl.trans(grad_scores), query_r, input_precision="ieee")
        at = grad_latents + keys.to(tl.int64)[:, None] * (V + R)
        tl.atomic_add(at + v[None], grad_key_v, mask=is_key[:, None] & (v < V)[None], sem="relaxed")
        tl.atomic_add(at + V + r[None], grad_key_r, mask=is_key[:, None] & (r < R)[None], sem="relaxed")
    to = grad_query + rows[:, None] * (V + R)
    tl.store(to + v[None], grad_v.to(query.dtype.element_ty), mask=is_head[:, None] & (v < V)[None])
    tl.store(to + V + r[None], grad_r.to(query.dtype.element_ty), mask=is_head[:, None] & (r < R)[None])


@triton.jit  # type: ignore[untyped-decorator]
def _score(  # type: ignore[no-untyped-def]
    vectors,
    weights,
    keys,
    scores,
    num_queries,
    num_keys,
    horizon,
    num_heads: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """All heads of a few queries against a block of keys: only their weighted sum is written."""
    first_query, first_key = tl.program_id(0) * BLOCK_QUERIES, tl.program_id(1) * BLOCK_KEYS
    if first_key <= horizon + first_query + BLOCK_QUERIES - 1:
        lane = tl.arange(0, BLOCK_QUERIES * TILE_HEADS)
        query, head = first_query + lane // TILE_HEADS, lane % TILE_HEADS
        kept = (query < num_queries) & (head < num_heads)
        columns, key = tl.arange(0, TILE_SIZE), first_key + tl.arange(0, BLOCK_KEYS)
        vector = _load_rows(vectors, query * num_heads + head, kept, columns, SIZE, SIZE)
        keyed = _load_rows(keys, key, key < num_keys, columns, SIZE, SIZE)
        weight = tl.load(weights + query * num_heads + head, mask=kept, other=0.0)
        products = tl.maximum(tl.dot(vector, tl.trans(keyed), input_precision="ieee"), 0.0) * weight[:, None]
        result = tl.sum(tl.reshape(products, [BLOCK_QUERIES, TILE_HEADS, BLOCK_KEYS]), 1)
        row = first_query + tl.arange(0, BLOCK_QUERIES)
        to = scores + row.to(tl.int64)[:, None] * num_keys + key[None]
        tl.store(to, result, mask=(row < num_queries)[:, None] & (key < num_keys)[None])
