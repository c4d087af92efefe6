"""Which sequences of a pack one call of a kernel serves, and that the calls together are causal attention.

cuDNN runs on GPUs alone (`tests/test_on_gpu.py` of this distribution); here torch's plain kernel takes its batches, in
float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from slime_megatron.transformer.attention import causal
from slime_megatron.transformer.attention.causal import Segments, by_sequence, in_calls
from slime_megatron.transformer.attention.shared_prompts import SharedPrompts

SCALE = 0.3
PACKS = {
    "equal": [48] * 4,
    "padded": [41] * 5,
    "unequal": [41, 48, 33, 50],
    "mixed": [40, 5, 40, 48, 130, 3, 40, 45, 48, 64, 100, 9],
    "one": [200],
    "short": [5, 9, 1],
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the real lengths, so that float64 attention on CPU is quick."""
    for name, value in {"LONG": 96, "SHORT": 32, "_STEP": 16, "_LONG_STEP": 64}.items():
        monkeypatch.setattr(causal, name, value)


def segments_of(lengths: Sequence[int], keys: Sequence[int] | None = None) -> Segments:
    return Segments.of(lengths, keys or lengths, torch.device("cpu"))


def plain(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def inputs(num_queries: int, num_keys: int | None = None) -> list[Tensor]:
    """4 heads, 2 key-value heads, values smaller than keys."""
    num_keys = num_keys or num_queries
    return [normal(num_queries, 4, 8, seed=1), normal(num_keys, 2, 8, seed=2), normal(num_keys, 2, 6, seed=3)]


def assert_equal(got: Tensor, wanted: Tensor, tensors: list[Tensor]) -> None:
    factors = normal(*wanted.shape, seed=4).detach()
    pairs = [(got, wanted)]
    pairs += zip(*(torch.autograd.grad(out, tensors, factors) for out in (got, wanted)), strict=True)
    for found, exact in pairs:
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", PACKS.values(), ids=PACKS)
def test_calls_together_are_causal_attention(lengths: list[int]) -> None:
    segments, tensors = segments_of(lengths), inputs(sum(lengths))
    got = in_calls(*tensors, segments, SCALE, plain, by_sequence)
    assert_equal(got, by_sequence(*tensors, segments, SCALE), tensors)


def test_sequences_that_are_not_whole_are_among_the_others() -> None:
    """Queries that are the last tokens of their keys: of context parallelism and shared prompts."""
    queries, keys = [48, 48, 48, 20], [48, 96, 48, 60]
    segments, tensors = segments_of(queries, keys), inputs(sum(queries), sum(keys))
    assert [(call.sequences, call.length) for call in segments.calls] == [((0, 2), 48), ((1, 3), 0)]
    got = in_calls(*tensors, segments, SCALE, plain, by_sequence)
    assert_equal(got, by_sequence(*tensors, segments, SCALE), tensors)


def test_prompts_that_are_whole_are_batched_where_responses_share_them() -> None:
    lengths, prefixes = [48, 9, 12, 48, 10], [(), (range(30),), (range(30),), (), (range(69, 94),)]
    tensors, device = inputs(sum(lengths)), torch.device("cpu")
    batches: list[int] = []

    def batch(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        batches.append(len(query))
        return plain(query, key, value, scale)

    def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
        return in_calls(query, key, value, segments, scale, batch, by_sequence)

    got = SharedPrompts(lengths, prefixes, device).attend(attend, *tensors, SCALE)
    assert batches == [2]
    assert_equal(got, SharedPrompts(lengths, prefixes, device).attend(by_sequence, *tensors, SCALE), tensors)


def test_every_sequence_is_in_one_call_and_batches_are_few_shapes() -> None:
    """Multiples in length and powers of two in number: cuDNN plans for each pair of them."""
    lengths = (torch.randint(1, 40, (300,), generator=torch.Generator().manual_seed(5)) * 7).tolist()
    calls = segments_of(lengths).calls
    assert sorted(number for call in calls for number in call.sequences) == list(range(300))
    assert [call.length for call in calls].count(0) == 1
    for call in calls[:-1]:
        count, [length] = len(call.sequences), {lengths[number] for number in call.sequences}
        assert length <= call.length < length + (64 if length >= 96 else 16)
        assert count * call.length >= 96
        assert count == 1 if length >= 96 else count & (count - 1) == 0
    assert any(len(call.sequences) > 1 for call in calls[:-1])
    assert max(lengths[number] for number in calls[-1].sequences) < 96


def test_equal_neighbours_are_a_view_of_the_pack() -> None:
    """Copies of queries, keys and values would cost what the batch wins."""
    tensors, seen = inputs(4 * 48), []

    def batch(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        seen.extend([query, key, value])
        return plain(query, key, value, scale)

    in_calls(*tensors, segments_of([48] * 4), SCALE, batch, by_sequence)
    assert [x.data_ptr() for x in seen] == [x.data_ptr() for x in tensors]
    assert [len(x) for x in seen] == [4, 4, 4]
