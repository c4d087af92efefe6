"""The stock CUDA kernels that slime's modules choose, against float64: attention, RMSNorm, grouped experts.

Errors are relative Euclidean distances. bf16 keeps 8 bits, so one rounding costs about 2e-3 of each entry; inputs are
rounded before both sides, what lies between is rounded once or twice more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatron_core_portable.fixups import grouped_matmul
from slime_megatron.transformer.attention import causal
from slime_megatron.transformer.attention.causal import Segments, by_sequence
from slime_megatron.transformer.attention.shared_prompts import SharedPrompts

pytestmark = pytest.mark.gpu

TOLERANCE = 6e-3
LENGTHS = [512, 384, 64, 64, 8, 1000]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def check(function: Callable[..., Tensor], exact: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    """Values and gradients of `function` in bf16 against those of `exact` in float64; a gradient that is 0, as of
    queries that see one key, beside the values."""
    ours = [tensor.clone().requires_grad_() for tensor in inputs]
    theirs = [tensor.double().requires_grad_() for tensor in inputs]
    got, wanted = function(*ours), exact(*theirs)
    factors = normal(*got.shape)
    gradients = torch.autograd.grad(got, ours, factors)
    wanted_gradients = torch.autograd.grad(wanted, theirs, factors.double())
    for number, (x, y) in enumerate(zip((got, *gradients), (wanted, *wanted_gradients), strict=True)):
        error = float((x.double() - y).norm() / (y.norm() or wanted.norm()))
        assert error < TOLERANCE, f"{'values' if not number else f'gradient {number - 1}'} are off by {error:.1e}"


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(("size", "value_size"), [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_packed_attention(size: int, value_size: int, groups: int) -> None:
    attend = causal.causal_attention(torch.device("cuda"), torch.bfloat16)
    assert attend is not by_sequence
    segments = Segments.of(LENGTHS, LENGTHS, torch.device("cuda"))
    inputs = [
        normal(sum(LENGTHS), 8, size),
        normal(sum(LENGTHS), groups, size),
        normal(sum(LENGTHS), groups, value_size),
    ]
    scale = size**-0.5
    check(lambda *qkv: attend(*qkv, segments, scale), lambda *qkv: by_sequence(*qkv, segments, scale), inputs)


@pytest.mark.parametrize("lengths", [LENGTHS, [1000], [1024, 600]], ids=["some", "padded", "all"])
@pytest.mark.parametrize(("size", "value_size"), [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_long_sequences(monkeypatch: pytest.MonkeyPatch, lengths: list[int], size: int, value_size: int) -> None:
    monkeypatch.setattr(causal, "LONG", 500)
    monkeypatch.setattr(causal, "SHORT", 500)
    attend = causal.causal_attention(torch.device("cuda"), torch.bfloat16)
    segments = Segments.of(lengths, lengths, torch.device("cuda"))
    inputs = [normal(sum(lengths), 4, size), normal(sum(lengths), 2, size), normal(sum(lengths), 2, value_size)]
    assert causal.cudnn_knows(*inputs)
    check(lambda *qkv: attend(*qkv, segments, 0.1), lambda *qkv: by_sequence(*qkv, segments, 0.1), inputs)


BATCHES = {
    "equal": [1024] * 8,
    "padded": [1100] * 5,
    "mixed": [1024, 300, 1024, 1024, 4096, 1024, 17],
}
"""Sequences that cuDNN serves several at a time: 8; 4 of 1100 tokens, padded; 4 that are no neighbours."""


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("size", "value_size"), [(128, 128), (192, 128), (256, 256)])
def test_batches_of_short_sequences(lengths: list[int], size: int, value_size: int) -> None:
    attend = causal.causal_attention(torch.device("cuda"), torch.bfloat16)
    segments = Segments.of(lengths, lengths, torch.device("cuda"))
    assert max(len(call.sequences) for call in segments.calls if call.length) > 1
    inputs = [normal(sum(lengths), 4, size), normal(sum(lengths), 2, size), normal(sum(lengths), 2, value_size)]
    assert causal.cudnn_knows(*inputs)
    check(lambda *qkv: attend(*qkv, segments, 0.1), lambda *qkv: by_sequence(*qkv, segments, 0.1), inputs)


def test_batches_of_shared_prompts() -> None:
    """Prompts are whole sequences and make a batch; the responses that share them go to flash attention."""
    attend = causal.causal_attention(torch.device("cuda"), torch.bfloat16)
    lengths, prompt = [1024, 50, 60, 1024, 30, 1024, 1024], range(1000)
    shared = {1: (prompt,), 2: (prompt, range(1024, 1050)), 4: (range(1134, 2034),)}
    prefixes = [shared.get(number, ()) for number in range(len(lengths))]
    attention = SharedPrompts(lengths, prefixes, torch.device("cuda"))
    inputs = [normal(sum(lengths), 4, 128), normal(sum(lengths), 2, 128), normal(sum(lengths), 2, 128)]
    exact = lambda *qkv: attention.attend(by_sequence, *qkv, 0.1)  # noqa: E731
    check(lambda *qkv: attention.attend(attend, *qkv, 0.1), exact, inputs)


def test_queries_are_the_last_tokens_of_their_keys() -> None:
    attend = causal.causal_attention(torch.device("cuda"), torch.bfloat16)
    queries, keys = [64, 128, 32], [256, 128, 96]
    segments = Segments.of(queries, keys, torch.device("cuda"))
    inputs = [normal(sum(queries), 4, 128), normal(sum(keys), 2, 128), normal(sum(keys), 2, 128)]
    check(lambda *qkv: attend(*qkv, segments, 0.1), lambda *qkv: by_sequence(*qkv, segments, 0.1), inputs)


@pytest.mark.parametrize("window", [1, 100, 512])
def test_a_window(window: int) -> None:
    attend = causal.causal_attention(torch.device("cuda"), torch.bfloat16, window)
    exact = causal.causal_attention(torch.device("cuda"), torch.float64, window)
    segments = Segments.of(LENGTHS, LENGTHS, torch.device("cuda"))
    inputs = [normal(sum(LENGTHS), 4, 256), normal(sum(LENGTHS), 1, 256), normal(sum(LENGTHS), 1, 256)]
    check(lambda *qkv: attend(*qkv, segments, 0.1), lambda *qkv: exact(*qkv, segments, 0.1), inputs)


def test_values_may_be_a_strided_part_of_the_projection() -> None:
    attend = causal.causal_attention(torch.device("cuda"), torch.bfloat16)
    segments = Segments.of(LENGTHS, LENGTHS, torch.device("cuda"))

    def split(function: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda qkv: function(qkv[:, :4], qkv[:, 4:5], qkv[:, 5:6], segments, 0.1)

    check(split(attend), split(by_sequence), [normal(sum(LENGTHS), 6, 64)])


@pytest.mark.parametrize("hidden_size", [128, 4096])
def test_rms_norm(hidden_size: int) -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (hidden_size,), weight, 1e-5)

    def exact(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight

    check(norm, exact, [normal(700, 1, hidden_size), normal(hidden_size)])


@pytest.mark.parametrize("sizes", [[64, 0, 200, 7, 33], [0, 0, 0, 16, 0]])
def test_grouped_experts(sizes: list[int]) -> None:
    def loop(rows: Tensor, weights: Tensor) -> Tensor:
        return torch.cat([part @ weights[i] for i, part in enumerate(torch.split(rows, sizes))])

    inputs = [normal(sum(sizes), 64), normal(len(sizes), 64, 96)]
    check(lambda rows, weights: grouped_matmul(rows, weights, torch.tensor(sizes)), loop, inputs)
