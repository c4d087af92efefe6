"""`.sparse_attention` in plain torch operations. Exact; computed for a block of queries at a time, in the backward pass
(which computes the probabilities again) too.

Shape letters: t queries, b queries of a block, T keys, h heads, k keys chosen for a query, d key size, e value size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_BLOCK_KEYS = 2**15
"""Keys of a block of queries, all queries together: 75 MB of gathered fp32 latents of size 576."""


class PlainSparseAttention(torch.autograd.Function):
    """`sparse_attention` in plain torch operations, on any device."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, latents: Tensor, selected: Tensor, scale: float, value_size: int) -> Tensor:
        ctx.save_for_backward(query, latents, selected)
        ctx.scale, ctx.value_size = scale, value_size
        output = query.new_empty(*query.shape[:2], value_size)
        for block in blocks(selected):
            keys = gather(latents, selected[block])
            weights = probabilities(query[block], keys, selected[block], scale)
            torch.matmul(weights, keys[..., :value_size], out=output[block])
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """With p = softmax(s): ds = p * (dp - sum(p * dp)), summed per row of the latents."""
        query, latents, selected = ctx.saved_tensors
        grad_query, grad_latents = torch.empty_like(query), torch.zeros_like(latents)
        for block in blocks(selected):
            keys, grad = gather(latents, selected[block]), grads[0][block]
            weights = probabilities(query[block], keys, selected[block], ctx.scale)
            grad_weights = grad @ keys[..., : ctx.value_size].transpose(1, 2)
            grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True)) * ctx.scale
            torch.matmul(grad_scores, keys, out=grad_query[block])
            grad_keys = grad_scores.transpose(1, 2) @ query[block]
            grad_keys[..., : ctx.value_size] += weights.transpose(1, 2) @ grad
            grad_latents.index_add_(0, selected[block].clamp(min=0).flatten(), grad_keys.flatten(0, 1))
        return grad_query, grad_latents, None, None, None


def blocks(selected: Tensor, num_keys: int = _BLOCK_KEYS) -> list[slice]:
    """Blocks of queries that together have at most `num_keys` keys."""
    num_queries, size = len(selected), max(1, num_keys // selected.size(1))
    return [slice(start, min(start + size, num_queries)) for start in range(0, num_queries, size)]


def gather(rows: Tensor, selected: Tensor) -> Tensor:
    """[b, k, d]: the selected rows of [T, d]; any row where -1 stands for none."""
    return rows.index_select(0, selected.clamp(min=0).flatten()).view(*selected.shape, -1)


def probabilities(query: Tensor, keys: Tensor, selected: Tensor, scale: float) -> Tensor:
    """[b, h, k]: softmax(scale * query . keys) of query [b, h, d] and keys [b, k, d], 0 where nothing is selected."""
    scores = (query @ keys.transpose(1, 2)) * scale
    return scores.masked_fill_(selected[:, None] < 0, -math.inf).softmax(-1)
