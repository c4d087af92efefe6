"""Queries that see no more keys than would be chosen attend to all of them: the same function, forward and backward.

The layer's arithmetic is written out here once more, in float64, for one rank and for several at a time: absorbed
queries to chosen latents everywhere, against `Split` with dense attention where it says so. That the layer does the
same is seen in the families' tests, against transformers and in every layout.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from slime_megatron.sparse_attention.indexer import IndexQueries, select_keys
from slime_megatron.sparse_attention.sparse_attention import sparse_attention
from slime_megatron.sparse_attention.split import Split
from slime_megatron.train.model.packed.context_parallel import runs_of_rank
from slime_megatron.transformer.attention.causal import by_sequence

LENGTHS = [12, 4, 20, 8, 16]
BORDERS = [0, *accumulate(LENGTHS)]
NUM_TOKENS, HEADS, PLAIN, TURNED, LATENT, VALUE, SCALE = BORDERS[-1], 4, 5, 2, 6, 3, 0.4
CPU = torch.device("cpu")


class Inputs(NamedTuple):
    """Queries [T, H, ...] of the pack, latents with their rotary part [T, ...], up projections [H, ..., latent]."""

    plain: Tensor
    turned: Tensor
    latents: Tensor
    up_keys: Tensor
    up_values: Tensor


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs() -> Inputs:
    shapes = [
        (NUM_TOKENS, HEADS, PLAIN),
        (NUM_TOKENS, HEADS, TURNED),
        (NUM_TOKENS, LATENT + TURNED),
        (HEADS, PLAIN, LATENT),
        (HEADS, VALUE, LATENT),
    ]
    return Inputs(*(normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)))


def index() -> tuple[IndexQueries, Tensor]:
    """16 heads make no ties."""
    queries = IndexQueries(normal(NUM_TOKENS, 16, 4, seed=10), normal(NUM_TOKENS, 16, seed=11).float())
    return queries, normal(NUM_TOKENS, 4, seed=12)


def absorbed(plain: Tensor, turned: Tensor, up_keys: Tensor) -> Tensor:
    return torch.cat([torch.einsum("thn,hnr->thr", plain, up_keys), turned], dim=-1)


def all_sparse(given: Inputs, topk: int) -> Tensor:
    """[T, H, VALUE]: every query by chosen latents."""
    queries, keys = index()
    selected = select_keys(queries, keys, runs_of_rank(BORDERS, 1, 0), topk)
    query = absorbed(given.plain, given.turned, given.up_keys)
    mixed = sparse_attention(query, given.latents, selected, SCALE, LATENT)
    return torch.einsum("thr,hvr->thv", mixed, given.up_values)


def divided(given: Inputs, topk: int, cp_size: int, tp_size: int, contiguous: bool) -> tuple[Tensor, Tensor]:
    """[T, H, VALUE] of all ranks, and the rows of the pack where they stand."""
    outputs, rows = [], []
    for cp_rank in range(cp_size):
        runs = runs_of_rank(BORDERS, cp_size, cp_rank, contiguous=contiguous)
        mine = torch.cat([torch.arange(run.first, run.first + run.length) for run in runs])
        ranks = [Split.of(runs, topk, tp_size, rank, CPU) for rank in range(tp_size)]
        outputs.append(of_context_rank(given, topk, ranks, mine))
        rows.append(mine)
    return torch.cat(outputs), torch.cat(rows)


def of_context_rank(given: Inputs, topk: int, ranks: list[Split], mine: Tensor) -> Tensor:
    """[t, H, VALUE]: tensor-parallel ranks one after the other, what they exchange taken from one another."""
    per_rank, size = HEADS // len(ranks), len(mine) // len(ranks)
    heads = [slice(rank * per_rank, (rank + 1) * per_rank) for rank in range(len(ranks))]
    dense: list[Tensor | None] = [None for _ in ranks]
    sparse: list[Tensor | None] = [None for _ in ranks]
    for rank, split in enumerate(ranks):
        if all(split.is_sparse):
            continue
        part = [split.take(x[mine][:, heads[rank]], sparse=False) for x in (given.plain, given.turned)]
        latent, turned = given.latents[split.dense_keys].split([LATENT, TURNED], dim=-1)
        keys = torch.einsum("kr,hnr->khn", latent, given.up_keys[heads[rank]])
        keys = torch.cat([keys, turned[:, None].expand(-1, per_rank, -1)], dim=-1)
        values = torch.einsum("kr,hvr->khv", latent, given.up_values[heads[rank]])
        dense[rank] = by_sequence(torch.cat(part, dim=-1), keys, values, split.dense, SCALE)
    if any(ranks[0].is_sparse):
        sent = []
        for rank, split in enumerate(ranks):
            part = [split.take(x[mine][:, heads[rank]], sparse=True) for x in (given.plain, given.turned)]
            sent.append(split.trade(absorbed(*part, given.up_keys[heads[rank]]), lambda x: x))
        returned = []
        for rank, split in enumerate(ranks):
            n = max(split.traded)
            query = torch.cat([x[rank * n : (rank + 1) * n] for x in sent], dim=1)
            queries, keys = index()
            own = queries.of(mine[rank * size : (rank + 1) * size]).of(split.own)
            selected = split.filled(select_keys(own, keys, split.runs, topk))
            returned.append(sparse_attention(query, given.latents, selected, SCALE, LATENT))
        for rank, split in enumerate(ranks):
            whole = torch.cat([x[:, heads[rank]] for x in returned])
            mixed = split.trade_back(whole, lambda x: x)
            sparse[rank] = torch.einsum("thr,hvr->thv", mixed, given.up_values[heads[rank]])
    return torch.cat([split.together(dense[rank], sparse[rank]) for rank, split in enumerate(ranks)], dim=1)


@pytest.mark.parametrize("topk", [1, 5, 8, 12, 20])
@pytest.mark.parametrize(
    ("cp_size", "tp_size", "contiguous"),
    [(1, 1, True), (1, 2, True), (1, 4, True), (2, 1, True), (2, 2, True), (2, 1, False)],
)
def test_equals_attention_to_chosen_latents(topk: int, cp_size: int, tp_size: int, contiguous: bool) -> None:
    given = inputs()
    wanted = all_sparse(given, topk)
    got, rows = divided(given, topk, cp_size, tp_size, contiguous)
    assert sorted(rows.tolist()) == list(range(NUM_TOKENS))
    torch.testing.assert_close(got, wanted[rows], rtol=1e-12, atol=1e-12)
    factors = normal(*wanted.shape, seed=20)
    pairs = ((got, factors[rows]), (wanted, factors))
    gradients = [torch.autograd.grad(output, given, weights) for output, weights in pairs]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_which_queries_are_dense() -> None:
    """All of the sequences of 4 and 8, the first 8 of the others: 12 + 4 + 20 + 8 + 16 tokens."""
    split = Split.of(runs_of_rank(BORDERS, 1, 0), 8, 2, 1, CPU)
    assert split.lengths == [8, 4, 4, 8, 12, 8, 8, 8]
    assert split.is_sparse == [False, True, False, False, True, False, False, True]
    assert list(split.dense.query_lengths) == list(split.dense.key_lengths) == [8, 4, 8, 8, 8]
    assert split.traded == [4 + 6, 6 + 8]
    assert [(run.start, run.first, run.length) for run in split.runs] == [(16, 30, 6), (44, 52, 8)]
    assert split.own.tolist() == [*range(6), *range(22, 30)]


def test_a_later_chunk_sees_all_keys_before_it() -> None:
    """The second of two context-parallel ranks: its queries are the last of their keys."""
    split = Split.of(runs_of_rank([0, 12, 44], 2, 1, contiguous=True), 12, 1, 0, CPU)
    assert (list(split.dense.query_lengths), list(split.dense.key_lengths)) == ([6], [12])
    assert split.dense_keys.tolist() == list(range(12))
    assert [(run.first, run.length) for run in split.runs] == [(28, 16)]


@pytest.mark.parametrize("topk", [3, 8, 40])
def test_chosen_keys_come_first(topk: int) -> None:
    """The stock kernels are given their number."""
    selected = select_keys(*index(), runs_of_rank(BORDERS, 1, 0), topk)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    num_chosen = (positions + 1).clamp(max=topk)[:, None]
    assert torch.equal(selected >= 0, torch.arange(topk) < num_chosen)
