"""The lightning indexer of sparse attention: a small scorer that chooses the keys each query attends to.

(DeepSeek-AI 2025), "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", section 2.1:
I[t, s] = sum_j w[t, j] relu(q[t, j] . k[s]) over index heads j; query t attends to the top-k causal keys s.

Shape letters: s tokens of a rank's sequence shard, T tokens of the pack, n index heads, d index head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn.parameter import Parameter

from slime_megatron.sparse_attention.config import SparseLatentConfig
from slime_megatron.train.model.linear import ReplicatedLinear, device_of
from slime_megatron.train.model.packed.context_parallel import RowRange
from slime_megatron.transformer.rotary.module import RotaryTable, rotary

_BLOCK_SCORES = {"cpu": 2**24, "cuda": 2**26}
"""fp32 numbers that are alive at once while scores are made: for every head on CPU, their sums alone on CUDA."""


@dataclass(frozen=True)
class IndexQueries:
    """Vectors [s, n, d] and weights of the heads [s, n] fp32 of a sequence shard's queries; a score is the product of
    weights with relu(q . k)."""

    vectors: Tensor
    weights: Tensor

    def of(self, tokens: Tensor) -> IndexQueries:
        """Those of a few tokens, int64."""
        return IndexQueries(self.vectors.index_select(0, tokens), self.weights.index_select(0, tokens))


class Indexer(MegatronModule):  # type: ignore[misc]
    """Projects hidden states to index queries and keys. Replicated over tensor parallelism, frozen unless trained.

    Its inputs are detached: the model's own loss never reaches it, and its loss never reaches the model.
    """

    def __init__(self, config: SparseLatentConfig) -> None:
        super().__init__(config=config)
        heads, size = config.dsa_indexer_n_heads, config.dsa_indexer_head_dim
        init = config.init_method
        self.wq_b = ReplicatedLinear(config.q_lora_rank, heads * size, config=config, init_method=init)
        self.wk = ReplicatedLinear(config.hidden_size, size, config=config, init_method=init)
        self.k_norm = LayerNorm(config, size)
        self.weights_proj = ReplicatedLinear(config.hidden_size, heads, config=config, init_method=init)
        self.rotate, _ = rotary(device_of(config))
        self.requires_grad_(bool(config.dsa_indexer_loss_coeff))

    def forward(self, hidden: Tensor, query_latent: Tensor, table: RotaryTable) -> tuple[IndexQueries, Tensor]:
        """hidden [s, hidden_size], query_latent [s, q_lora_rank] -> index queries, and index keys [s, d]."""
        hidden, query_latent = hidden.detach(), query_latent.detach()
        heads, size = self.config.dsa_indexer_n_heads, self.config.dsa_indexer_head_dim
        queries = self.wq_b(query_latent)[0].view(-1, heads, size)
        keys = self.k_norm(self.wk(hidden)[0])
        # Rounded to bf16 these would choose other keys than the engine, which computes them in fp32 too.
        weights = F.linear(hidden.float(), self.weights_proj.weight.float()) / math.sqrt(heads * size)
        interleaved = self.config.dsa_indexer_rotary_interleaved
        vectors = self.rotate(queries, *table, interleaved)
        return IndexQueries(vectors, weights), self.rotate(keys[:, None], *table, interleaved)[:, 0]


class LayerNorm(torch.nn.Module):
    """Layer norm (Ba et al. 2016) with bias over the last dimension, computed in fp32."""

    def __init__(self, config: SparseLatentConfig, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        for name, value in {"weight": 1.0, "bias": 0.0}.items():
            parameter = Parameter(torch.full((size,), value, dtype=config.params_dtype, device=device_of(config)))
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape."""
        weight, bias = self.get_parameter("weight").float(), self.get_parameter("bias").float()
        return F.layer_norm(x.float(), weight.shape, weight, bias, self.eps).to(x.dtype)


@torch.no_grad()
def select_keys(queries: IndexQueries, keys: Tensor, runs: Sequence[RowRange], topk: int) -> Tensor:
    """[s, topk] int32: for every query the rows of its `topk` best causal keys; then -1 where it has fewer.

    Args:
        keys: [T, d] index keys of the whole pack.
        runs: the pack's rows that the queries stand in, in order.
    """
    selected, offset = [torch.empty(0, topk, dtype=torch.int32, device=keys.device)], 0
    for run in runs:
        see_all = run.slice(0, topk - run.num_before)
        if see_all.length:
            selected.append(_all_rows(see_all, topk, keys.device))
        for begin in range(see_all.length, run.length, size := _block_size(run, queries.vectors)):
            block = run.slice(begin, begin + size)
            rows = slice(offset + begin, offset + begin + block.length)
            part = IndexQueries(queries.vectors[rows], queries.weights[rows])
            selected.append(_select_block(part, keys, block, topk))
        offset += run.length
    return torch.cat(selected)


def _all_rows(run: RowRange, topk: int, device: torch.device) -> Tensor:
    """[b, topk] of queries that see at most `topk` keys: there is nothing to choose."""
    own = torch.arange(run.num_before, run.num_seen, dtype=torch.int32, device=device)[:, None]
    places = torch.arange(topk, dtype=torch.int32, device=device)
    return torch.where(places <= own, _rows(run, places), -1)


def _rows(run: RowRange, places: Tensor) -> Tensor:
    """Where tokens stand in the pack, by their places in the sequence of a run."""
    end = run.num_shared
    rows = places + (run.start - end)
    for part in reversed(run.before):
        begin = end - len(part)
        rows, end = torch.where(places < end, places + (part.start - begin), rows), begin
    return rows


def _block_size(run: RowRange, vectors: Tensor) -> int:
    numbers_a_query = run.num_seen if vectors.is_cuda else run.num_seen * vectors.size(1)
    return max(1, _BLOCK_SCORES[vectors.device.type] // numbers_a_query)


def _select_block(queries: IndexQueries, keys: Tensor, block: RowRange, topk: int) -> Tensor:
    """[b, topk] of the block's queries, which see the keys of their sequence up to their own, more than `topk`."""
    parts = [keys[rows.start : rows.stop] for rows in block.seen_ranges()]
    seen = torch.cat(parts) if len(parts) > 1 else parts[0]
    own = torch.arange(block.num_before, block.num_seen, device=keys.device)[:, None]
    scores = index_scores(queries, seen, horizon=block.num_before)
    places = torch.arange(block.num_seen, device=keys.device)
    return _rows(block, _best(scores.masked_fill_(places > own, -math.inf), topk)).int()


def _best(scores: Tensor, topk: int) -> Tensor:
    """Columns of the highest scores. Of equal ones, which few index heads make at 0, the first: so on CPU the choice
    does not depend on how a pack is cut. On CUDA, which would have to sort all for that, it is open."""
    if scores.is_cuda:
        return scores.topk(topk, dim=-1, sorted=False).indices
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :topk]


def index_scores(queries: IndexQueries, keys: Tensor, horizon: int) -> Tensor:
    """[b, m] fp32: I of queries [b, n, d] and keys [m, d], defined where query i sees the key: up to horizon + i."""
    if keys.is_cuda:
        from slime_megatron.sparse_attention.kernels import triton_index_scores

        return triton_index_scores(queries.vectors, queries.weights, keys, horizon)
    products = (queries.vectors.float() @ keys.float().t()).relu_()
    return (queries.weights[:, None] @ products)[:, 0]
