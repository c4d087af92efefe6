"""Packed attention against one dense softmax a sequence, in float64, with gradients."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from slime_megatron.train.model.packed.context_parallel import row_index, runs_of_rank
from slime_megatron.train.model.packed.sequences import PackedSequences
from slime_megatron.transformer.attention import causal
from slime_megatron.transformer.attention.causal import Segments, by_sequence
from slime_megatron.transformer.attention.packed import ContextParallelLayout

LENGTHS = [16, 16, 8, 32, 4, 4, 4]
BORDERS = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
SEGMENTS = Segments.of(LENGTHS, LENGTHS, torch.device("cpu"))
SCALE = 0.3


def inputs(heads: int = 4, groups: int = 2, size: int = 8, value_size: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(heads, size), (groups, size), (groups, value_size)]
    return [torch.randn(BORDERS[-1], *shape, generator=generator, dtype=torch.float64) for shape in shapes]


def dense(query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
    repeats = query.size(1) // key.size(1)
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    outputs = []
    for start, end in pairwise(BORDERS):
        scores = torch.einsum("qhd,khd->hqk", query[start:end], key[start:end]) * SCALE
        future = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)
        unseen = future | torch.ones_like(future).tril(-window) if window else future
        weights = scores.masked_fill(unseen, -math.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, value[start:end]))
    return torch.cat(outputs)


def with_gradients(function, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    output = function(*tensors)
    factors = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return output.detach(), *torch.autograd.grad((output * factors).sum(), tensors)


@pytest.mark.parametrize(("groups", "value_size"), [(4, 8), (2, 8), (1, 8), (4, 6)])
def test_equals_dense_attention(groups: int, value_size: int) -> None:
    tensors = inputs(groups=groups, value_size=value_size)
    got = with_gradients(lambda q, k, v: by_sequence(q, k, v, SEGMENTS, SCALE), tensors)
    torch.testing.assert_close(got, with_gradients(dense, tensors), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [1, 5, 16, 100])
def test_a_window_hides_the_keys_before_it(window: int) -> None:
    """Its last key is the query's own: 1 leaves that alone, and one as long as the sequence hides nothing."""
    attend = causal.causal_attention(torch.device("cpu"), torch.float64, window)
    got = with_gradients(lambda q, k, v: attend(q, k, v, SEGMENTS, SCALE), inputs())
    wanted = with_gradients(lambda q, k, v: dense(q, k, v, window), inputs())
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_long_sequences_are_those_that_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "LONG", 16)
    monkeypatch.setattr(causal, "SHORT", 16)
    segments = Segments.of([*LENGTHS, 16], [*LENGTHS, 24], torch.device("cpu"))
    *long, others = segments.calls
    assert [call.sequences for call in long] == [(0,), (1,), (3,)]
    assert others.sequences == (2, 4, 5, 6, 7)
    assert others.segments is not None
    assert others.segments.key_borders.tolist() == [0, 8, 12, 16, 20, 44]


@pytest.mark.parametrize("cp_size", [2])
def test_context_parallel_ranks_together_equal_one_rank(cp_size: int) -> None:
    """What each rank computes from the gathered keys, put back in order; the gather itself is torch's."""

    def ranks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = [torch.from_numpy(row_index(runs_of_rank(BORDERS, cp_size, rank))) for rank in range(cp_size)]
        gathered = [torch.cat([tensor[index] for index in rows]) for tensor in (key, value)]
        outputs = []
        for rank, index in enumerate(rows):
            layout = ContextParallelLayout.of(PackedSequences.of(BORDERS, cp_size, rank, torch.device("cpu")))
            keys, values = (tensor[layout.key_index] for tensor in gathered)
            outputs.append(by_sequence(query[index], keys, values, layout.segments, SCALE))
        return torch.cat(outputs)[torch.argsort(torch.cat(rows))]

    got, wanted = with_gradients(ranks, inputs()), with_gradients(dense, inputs())
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
