"""Rows by expert and sums of them are those of Megatron-core's permutation, which asks the device for sizes."""

from __future__ import annotations

import pytest
import torch
from megatron.core.transformer.moe.moe_utils import permute, sort_chunks_by_idxs, unpermute
from torch import Tensor

from slime_megatron.mixture_of_experts.rows import Order, chosen, collect, spread

NUM_TOKENS, NUM_EXPERTS, TOPK, HIDDEN = 13, 6, 3, 5


def routed(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [n, h], probabilities and map [n, e]; nobody chooses the expert before the last."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(NUM_TOKENS, NUM_EXPERTS, generator=generator, dtype=torch.float64)
    scores[:, -2] = 0
    routing_map = torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(TOPK).indices, True)
    tokens = torch.randn(NUM_TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    return tokens, scores * routing_map, routing_map


def test_the_chosen_experts_are_those_of_the_map() -> None:
    _, _, routing_map = routed(0)
    experts = chosen(routing_map, TOPK)
    assert experts.tolist() == [row.nonzero().flatten().tolist() for row in routing_map]


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_sums_equal_megatrons(seed: int) -> None:
    tokens, probabilities, routing_map = routed(seed)
    found, wanted = [], []
    for kept, ours in ((found, True), (wanted, False)):
        given, weights = tokens.clone().requires_grad_(), probabilities.clone().requires_grad_()
        if ours:
            experts = chosen(routing_map, TOPK)
            by_expert = Order.by_expert(experts)
            order = by_expert.of_tokens(TOPK)
            rows, of_rows = spread(given, order), spread(weights.gather(1, experts).flatten(), by_expert)
            sums = collect(rows * of_rows[:, None], order)
        else:
            rows, of_rows, places = permute(given, routing_map, probs=weights)
            sums = unpermute(rows * of_rows[:, None], places, given.shape)
        sums.square().sum().backward()
        kept += [rows, of_rows, sums, given.grad, weights.grad]
    for got, want in zip(found[:2], wanted[:2], strict=True):
        assert torch.equal(got, want)
    for got, want in zip(found[2:], wanted[2:], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_sums_of_bf16_are_rounded_once() -> None:
    experts = torch.tensor([[0, 1, 2]])
    order = Order.by_expert(experts).of_tokens(3)
    rows = torch.tensor([[1.0], [2**-8], [2**-8]], dtype=torch.bfloat16)  # each alone is lost beside 1
    assert collect(rows, order).item() == 1 + 2**-7


def test_chunks_are_sorted_as_megatron_sorts_them() -> None:
    counts = torch.tensor([[2, 0, 3], [1, 4, 0]])  # [ranks, experts]
    rows = torch.arange(10.0)[:, None]
    order = Order.of_chunks(counts, 10)
    wanted, _ = sort_chunks_by_idxs(rows, counts.flatten(), torch.arange(6).view(2, 3).T.flatten())
    assert torch.equal(spread(rows, order), wanted)
    assert torch.equal(collect(spread(rows, order), order), rows)


def test_no_rows_are_sorted_to_none() -> None:
    order = Order.of_chunks(torch.zeros(2, 3, dtype=torch.int64), 0)
    assert spread(torch.zeros(0, 4), order).shape == (0, 4)
