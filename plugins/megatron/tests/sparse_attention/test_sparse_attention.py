"""Sparse attention and its indexer against dense formulas in float64; the sums differ in order alone."""

import math

import pytest
import torch
from torch import Tensor

from slime_megatron.sparse_attention import plain as module
from slime_megatron.sparse_attention.config import SparseLatentConfig
from slime_megatron.sparse_attention.indexer import Indexer, IndexQueries, select_keys
from slime_megatron.sparse_attention.indexer_loss import AttentionTarget, indexer_loss
from slime_megatron.sparse_attention.sparse_attention import sparse_attention
from slime_megatron.train.model.packed.context_parallel import RowRange, row_index, runs_of_rank, slice_rows
from slime_megatron.transformer.rotary.module import RotaryTable

SCALE, VALUE_SIZE = 0.4, 6
LENGTHS = [12, 4, 20]
BORDERS = [0, 12, 16, 36]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal(lengths: list[int]) -> Tensor:
    """[T, T]: may the row's token see the column's?"""
    return torch.block_diag(*[torch.ones(length, length).tril() for length in lengths]).bool()


def chosen(scores: Tensor, topk: int) -> Tensor:
    """[T, T]: is the column among the row's `topk` best causal keys? Written with a sort of every row."""
    seen = causal(LENGTHS)
    order = scores.masked_fill(~seen, -math.inf).argsort(dim=1, descending=True)[:, :topk]
    return torch.zeros_like(seen).scatter_(1, order, True) & seen


def dense_scores(queries: IndexQueries, keys: Tensor) -> Tensor:
    products = torch.einsum("tnd,sd->tns", queries.vectors, keys).relu()
    return torch.einsum("tn,tns->ts", queries.weights.double(), products)


def as_mask(selected: Tensor, num_keys: int) -> Tensor:
    mask = torch.zeros(len(selected), num_keys + 1, dtype=torch.bool)
    return mask.scatter_(1, torch.where(selected < 0, num_keys, selected).long(), True)[:, :-1]


@pytest.fixture
def index() -> tuple[IndexQueries, Tensor]:
    """Few heads make ties at a score of zero, where any choice is right: 16 heads make none here."""
    return IndexQueries(random(36, 16, 4), random(36, 16, seed=1).float()), random(36, 4, seed=2)


@pytest.mark.parametrize("topk", [1, 5, 12, 20])
def test_every_query_gets_its_best_causal_keys(index: tuple[IndexQueries, Tensor], topk: int) -> None:
    selected = select_keys(*index, runs_of_rank(BORDERS, 1, 0), topk)
    assert selected.shape == (36, topk)
    assert torch.equal(as_mask(selected, 36), chosen(dense_scores(*index), topk))


def test_blocks_of_queries_change_nothing(index: tuple[IndexQueries, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = as_mask(select_keys(*index, runs_of_rank(BORDERS, 1, 0), 5), 36)
    monkeypatch.setattr("slime_megatron.sparse_attention.indexer._BLOCK_SCORES", {"cpu": 3 * 20 * 16})
    assert torch.equal(as_mask(select_keys(*index, runs_of_rank(BORDERS, 1, 0), 5), 36), wanted)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("num_shards", [1, 2])
def test_ranks_and_shards_choose_what_one_rank_does(
    index: tuple[IndexQueries, Tensor], contiguous: bool, num_shards: int
) -> None:
    """Context parallelism in either split, each rank's tokens cut again by sequence parallelism."""
    queries, keys = index
    wanted = as_mask(select_keys(queries, keys, runs_of_rank(BORDERS, 1, 0), 5), 36)
    seen = []
    for rank in range(2):
        runs = runs_of_rank(BORDERS, 2, rank, contiguous=contiguous)
        for shard in range(num_shards):
            mine = slice_rows(runs, shard * 18 // num_shards, (shard + 1) * 18 // num_shards)
            rows = torch.from_numpy(row_index(mine))
            part = IndexQueries(queries.vectors[rows], queries.weights[rows])
            assert torch.equal(as_mask(select_keys(part, keys, mine, 5), 36), wanted[rows])
            seen += rows.tolist()
    assert sorted(seen) == list(range(36))


def dense_attention(query: Tensor, latents: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Output [t, h, e] and probabilities [t, h, T]."""
    scores = torch.einsum("thd,sd->ths", query, latents) * SCALE
    weights = scores.masked_fill(~mask[:, None], -math.inf).softmax(-1)
    return torch.einsum("ths,se->the", weights, latents[:, :VALUE_SIZE]), weights


@pytest.mark.parametrize("block_keys", [2**15, 11])
def test_attention_and_its_gradients_equal_a_masked_softmax(
    index: tuple[IndexQueries, Tensor], block_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.blocks, "__defaults__", (block_keys,))
    selected = select_keys(*index, runs_of_rank(BORDERS, 1, 0), 5)
    tensors = [random(36, 3, 8, seed=3).requires_grad_(), random(36, 8, seed=4).requires_grad_()]
    got = sparse_attention(*tensors, selected, SCALE, VALUE_SIZE)
    wanted, _ = dense_attention(*tensors, as_mask(selected, 36))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    factors = random(*got.shape, seed=5)
    gradients = [torch.autograd.grad(out, tensors, factors) for out in (got, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("block_keys", [2**15, 11])
def test_indexer_loss_is_the_divergence_from_the_mean_attention_of_the_layers_it_serves(
    index: tuple[IndexQueries, Tensor], num_layers: int, block_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KL(mean p || softmax(I)) over the chosen keys and its gradient; scores are fp32, as in training."""
    monkeypatch.setattr(module.blocks, "__defaults__", (block_keys,))
    queries, keys = index
    selected = select_keys(queries, keys, runs_of_rank(BORDERS, 1, 0), 5)
    mask = as_mask(selected, 36)
    target, attended = AttentionTarget(), []
    for layer in range(num_layers):
        query, latents = random(36, 3, 8, seed=20 + layer), random(36, 8, seed=30 + layer)
        target.add(query, latents, selected, SCALE)
        attended.append(dense_attention(query, latents, mask)[1].mean(1))
    mean = torch.stack(attended).mean(0)
    given = [tensor.double().requires_grad_() for tensor in (queries.vectors, queries.weights, keys)]
    scores = dense_scores(IndexQueries(*given[:2]), given[2]).masked_fill(~mask, -1e9)
    wanted = (torch.xlogy(mean, mean) - mean * scores.log_softmax(-1)).masked_fill(~mask, 0)
    token_weights = random(36, seed=10).float()
    wanted = wanted.sum(1) @ token_weights.double()
    exact = torch.autograd.grad(wanted, given)
    ours = [tensor.detach().float() for tensor in given]
    got, gradients = indexer_loss(IndexQueries(*ours[:2]), ours[2], selected, target.mean(), token_weights)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close([g.double() for g in gradients], list(exact), rtol=1e-4, atol=1e-5)


def test_head_weights_are_not_rounded_to_bf16() -> None:
    """Against float64 products of the same bf16 inputs. Rounded, they are off by up to 2**-9 of themselves."""
    sizes = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "q_lora_rank": 16, "bf16": True}
    indexer = {"dsa_indexer_n_heads": 16, "dsa_indexer_head_dim": 8, "dsa_indexer_topk": 4}
    precision = {"params_dtype": torch.bfloat16, "use_cpu_initialization": True}
    made = Indexer(SparseLatentConfig(**sizes, **indexer, **precision, dsa_indexer_layers=[True], rope_type="rope"))
    hidden, latent = random(9, 64).bfloat16(), random(9, 16, seed=1).bfloat16()
    table = RotaryTable(torch.ones(9, 2), torch.zeros(9, 2))
    queries, _ = made(hidden, latent, table)
    wanted = hidden.double() @ made.weights_proj.weight.double().T / math.sqrt(16 * 8)
    torch.testing.assert_close(queries.weights.double(), wanted, rtol=1e-5, atol=1e-7)


def test_contiguous_chunks_are_the_parts_of_each_sequence() -> None:
    assert runs_of_rank([0, 4, 12], 2, 1, contiguous=True) == [RowRange(0, 2, 2), RowRange(4, 8, 4)]
    assert runs_of_rank([0, 4, 12], 2, 1) == [
        RowRange(0, 1, 1),
        RowRange(0, 2, 1),
        RowRange(4, 6, 2),
        RowRange(4, 8, 2),
    ]
