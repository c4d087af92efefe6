"""The objective that trains the indexer: it learns how the heads distribute their attention over the chosen keys.

(DeepSeek-AI 2025), "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", section 2.1.1: the loss of
query t is KL(p[t, S] || softmax(I[t, S])) over its chosen keys S, where p is the sum of all heads' attention
probabilities, normalised to 1. With as many keys as a sequence has tokens this is the dense warm-up's loss too.

An indexer whose choice serves several layers learns from the mean of their p (arXiv 2603.12201). The layers that reuse
the choice come after the one that makes it, so loss and gradient are computed in that layer's backward pass, before
which all of them have run, recomputed ones too.

Shape letters: s queries of a rank's sequence shard, T keys of the pack, b queries of a block, n index heads, d index
head size, k chosen keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slime_megatron.sparse_attention.indexer import IndexQueries
from slime_megatron.sparse_attention.plain import blocks, gather, probabilities


class AttentionTarget:
    """The mean attention of the layers that attend to one choice of keys, which grows as they run.

    Every layer adds its own once: where a layer is recomputed its first pass has no gradients, and adds nothing.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._num_layers = 0

    @torch.no_grad()
    def add(self, query: Tensor, latents: Tensor, selected: Tensor, scale: float) -> None:
        """One layer's attention of query [s, h, d], all heads of them, to `selected` [s, k] of latents [T, d]."""
        parts = [
            probabilities(query[block], gather(latents, selected[block]), selected[block], scale).float().mean(1)
            for block in blocks(selected)
        ]
        attention = torch.cat(parts)
        self._sum = attention if self._sum is None else self._sum.add_(attention)
        self._num_layers += 1

    def mean(self) -> Tensor:
        """[s, k] fp32: over heads and layers."""
        assert self._sum is not None, "the layer that chooses attends, too"
        return self._sum / self._num_layers


@dataclass(frozen=True)
class IndexerLoss:
    """What the backward pass needs besides the indexer's outputs.

    Attributes:
        selected: [s, k] the chosen keys, -1 for none.
        token_weights: [s], of each query's loss.
        report: gets the weighted sum of the losses.
    """

    selected: Tensor
    target: AttentionTarget
    token_weights: Tensor
    report: Callable[[Tensor], None]


def add_indexer_loss(output: Tensor, queries: IndexQueries, keys: Tensor, loss: IndexerLoss) -> Tensor:
    """`output` unchanged; its backward pass also starts the gradient of the indexer's loss, of queries [s, ...] and
    keys [T, d]."""
    result: Tensor = _AddedLoss.apply(output, queries.vectors, queries.weights, keys, loss)  # type: ignore[no-untyped-call]
    return result


class _AddedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, vectors: Tensor, weights: Tensor, keys: Tensor, loss: IndexerLoss) -> Tensor:
        ctx.save_for_backward(vectors, weights, keys)
        ctx.loss = loss
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        vectors, weights, keys = ctx.saved_tensors
        loss: IndexerLoss = ctx.loss
        target = loss.target.mean()
        value, gradients = indexer_loss(IndexQueries(vectors, weights), keys, loss.selected, target, loss.token_weights)
        loss.report(value)
        return grads[0], *gradients, None


def indexer_loss(
    queries: IndexQueries, keys: Tensor, selected: Tensor, target: Tensor, token_weights: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Weighted sum over queries of KL(target || softmax(scores)), and its gradients by the queries' vectors, their
    weights, and keys; scores exist for a block of queries at a time.

    With I = sum_n w_n relu(q_n . k): dI = sum(target) * softmax(I) - target, times the query's weight.
    """
    by_vectors, by_weights = torch.empty_like(queries.vectors), torch.empty_like(queries.weights)
    by_keys, value = torch.zeros_like(keys, dtype=torch.float32), torch.zeros((), device=keys.device)
    for block in blocks(selected):
        vectors, weights, wanted = queries.vectors[block].float(), queries.weights[block][:, None], target[block]
        taken = gather(keys, selected[block]).float()
        products = (vectors @ taken.transpose(1, 2)).relu_()  # [b, n, k]
        scores = (weights @ products)[:, 0].masked_fill_(selected[block] < 0, -math.inf)
        log_share = scores.log_softmax(-1)
        by_scores = log_share.exp() * wanted.sum(-1, keepdim=True) - wanted
        by_scores = (by_scores * token_weights[block][:, None])[:, None]  # [b, 1, k]
        losses = torch.xlogy(wanted, wanted) - wanted * log_share.masked_fill_(selected[block] < 0, 0.0)
        value += losses.sum(-1) @ token_weights[block]
        by_weights[block] = (products * by_scores).sum(-1)
        by_products = by_scores * weights.transpose(1, 2) * (products > 0)
        by_vectors[block] = by_products @ taken
        by_taken = by_products.transpose(1, 2) @ vectors
        by_keys.index_add_(0, selected[block].clamp(min=0).flatten(), by_taken.flatten(0, 1))
    return value, (by_vectors, by_weights, by_keys.to(keys.dtype))
