"""The sparse-attention kernels against a dense masked softmax in float64, forward and backward.

bf16: inputs are exact in it, probabilities and gradients are rounded once or twice on their way through matrix
products (relative 2^-8 each), and errors are measured against the largest entry.
"""

import pytest
import torch
from torch import Tensor

from slime_megatron.sparse_attention.indexer import IndexQueries, index_scores

SCALE = 0.3
SHAPES = [(9, 3, 32, 8, 5), (20, 17, 48, 16, 40)]
"""Tokens, heads, value size, rest of the key, chosen keys: head blocks and tiles that are not full."""
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCES) if torch.cuda.is_available() else [torch.float32]
"""The interpreter multiplies the bit patterns of bf16 matrices."""
REAL = [(700, heads, 512, 64, 300) for heads in (8, 32, 64)]
"""Latent sizes of a real model, and its heads with and without tensor parallelism; tiles of this size fit a GPU in bf16
alone."""
CASES = [(shape, dtype) for shape in SHAPES for dtype in DTYPES]
CASES += [(shape, torch.bfloat16) for shape in REAL] if torch.cuda.is_available() else []


def inputs(shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    num_tokens, num_heads, value_size, rest, num_selected = shape
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(num_tokens, num_heads, value_size + rest, generator=generator)
    latents = torch.randn(num_tokens, value_size + rest, generator=generator)
    chances = torch.rand(num_tokens, num_tokens, generator=generator).tril() + torch.eye(num_tokens)
    best = chances.topk(min(num_selected, num_tokens), dim=1)
    selected = torch.full((num_tokens, num_selected), -1, dtype=torch.int32)
    selected[:, : best.indices.size(1)] = torch.where(best.values > 0, best.indices, -1)
    grad = torch.randn(num_tokens, num_heads, value_size, generator=generator)
    return query.to(device, dtype), latents.to(device, dtype), selected.to(device), grad.to(device, dtype)


def dense(query: Tensor, latents: Tensor, selected: Tensor, value_size: int) -> Tensor:
    """[t, h, value_size] with a mask [t, T], as autograd differentiates it."""
    kept = torch.zeros(len(selected), len(latents) + 1, dtype=torch.bool, device=selected.device)
    kept.scatter_(1, torch.where(selected < 0, len(latents), selected).long(), True)
    scores = torch.einsum("thd,sd->ths", query, latents) * SCALE
    weights = scores.masked_fill(~kept[:, None, :-1], -torch.inf).softmax(-1)
    return torch.einsum("ths,sv->thv", weights, latents[:, :value_size])


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "dtype"), CASES)
def test_equals_a_dense_masked_softmax(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    from slime_megatron.sparse_attention.kernels import TritonSparseAttention

    query, latents, selected, grad = inputs(shape, dtype, device)
    exact = [tensor.double().requires_grad_() for tensor in (query, latents)]
    wanted = dense(*exact, selected, shape[2])
    ours = [tensor.requires_grad_() for tensor in (query, latents)]
    got = TritonSparseAttention.apply(*ours, selected, SCALE, shape[2])
    pairs = [(got, wanted)]
    pairs += zip(torch.autograd.grad(got, ours, grad), torch.autograd.grad(wanted, exact, grad.double()), strict=True)
    for value, reference in pairs:
        assert value.dtype == dtype
        error = (value.double() - reference).abs().max() / reference.abs().max()
        assert error < TOLERANCES[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_index_scores(dtype: torch.dtype, device: torch.device) -> None:
    """Where a query sees the key; products of bf16 numbers are exact in fp32, only their sums are rounded."""
    from slime_megatron.sparse_attention.kernels import triton_index_scores

    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(6, 5, 24, generator=generator).to(device, dtype)
    weights, keys = torch.randn(6, 5, generator=generator), torch.randn(140, 24, generator=generator)
    weights, keys, horizon = weights.to(device), keys.to(device, dtype), 132
    got = triton_index_scores(vectors, weights, keys, horizon)
    queries = IndexQueries(vectors.cpu().double(), weights.cpu())
    wanted = index_scores(queries, keys.cpu(), horizon).to(device)
    seen = torch.arange(140, device=device) <= horizon + torch.arange(6, device=device)[:, None]
    torch.testing.assert_close(got[seen], wanted[seen], rtol=1e-5, atol=1e-5)
