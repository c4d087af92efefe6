"""The objective that trains the indexer: it learns how the heads distribute their attention over the chosen keys.

(DeepSeek-AI 2025), "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", section 2.1.1: the loss of
query t is KL(p[t, S] || softmax(I[t, S])) over its chosen keys S, where p is the sum of all heads' attention
probabilities, normalised to 1. With as many keys as a sequence has tokens this is the dense warm-up's loss too.

Shape letters: s queries of a rank's sequence shard, T keys of the pack, b queries of a block, k chosen keys, n index
heads.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slime.train.specs.indexer import IndexQueries
from slime.train.specs.sparse_attention import blocks, gather, probabilities


def add_indexer_loss(
    output: Tensor,
    queries: IndexQueries,
    keys: Tensor,
    *,
    query: Tensor,
    latents: Tensor,
    selected: Tensor,
    scale: float,
    token_weights: Tensor,
) -> Tensor:
    """`output` unchanged; its backward pass also starts the gradient of the indexer's loss.

    Args:
        queries, keys: of the indexer, [s, ...] and [T, ...].
        query, latents, selected: of the attention, all heads of the s queries; get no gradient.
        token_weights: [s], of each query's loss.
    """
    target = attention_target(query.detach(), latents.detach(), selected, scale)
    loss = indexer_loss(queries, keys, selected, target, token_weights)
    result: Tensor = _AddedLoss.apply(output, loss)  # type: ignore[no-untyped-call]
    return result


@torch.no_grad()
def attention_target(query: Tensor, latents: Tensor, selected: Tensor, scale: float) -> Tensor:
    """[s, k] fp32: mean over all heads of the attention probabilities."""
    parts = [
        probabilities(query[block], gather(latents, selected[block]), selected[block], scale).float().mean(1)
        for block in blocks(selected)
    ]
    return torch.cat(parts)


def indexer_loss(
    queries: IndexQueries, keys: Tensor, selected: Tensor, target: Tensor, token_weights: Tensor
) -> Tensor:
    """Weighted sum over queries of KL(target || softmax(scores)); scores exist for a block of queries at a time."""
    losses = []
    for block in blocks(selected):
        of_block = partial(_block_loss, keys=keys, selected=selected[block], target=target[block])
        losses.append(checkpoint(of_block, queries.vectors[block], queries.weights[block], use_reentrant=False))
    return torch.cat(losses) @ token_weights


def _block_loss(vectors: Tensor, weights: Tensor, *, keys: Tensor, selected: Tensor, target: Tensor) -> Tensor:
    """[b], of vectors [b, n, d], weights [b, n], selected and target [b, k]."""
    products = (vectors.float() @ gather(keys, selected).float().transpose(1, 2)).relu()
    scores = (weights[:, None] @ products)[:, 0]
    log_share = scores.masked_fill(selected < 0, -math.inf).log_softmax(-1).masked_fill(selected < 0, 0.0)
    return (torch.xlogy(target, target) - target * log_share).sum(-1)


class _AddedLoss(torch.autograd.Function):
    """Carries a loss along with a tensor that the backward pass is sure to visit."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return grads[0], torch.ones_like(loss)
