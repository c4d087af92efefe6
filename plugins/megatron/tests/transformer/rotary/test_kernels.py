"""The rotary kernel against the plain form in float64, on queries and keys as the projection leaves them.

bf16 results are rounded once (the interpreter cuts them off: 2^-7 relative).
"""

import pytest
import torch
from torch import Tensor

from slime_megatron.transformer.rotary.module import RotaryTable, plain_rotate, plain_split_and_rotate

TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-5}}
NUM_TOKENS = 7
SHAPES = [(2, 3, 8, 2), (2, 16, 16, 8), (1, 17, 24, 6)]
"""Groups, queries a group, head size, rotated pairs: partial and whole rotation, pairs that are no power of two."""


def table(num_pairs: int, device: torch.device) -> RotaryTable:
    angles = torch.linspace(0, 9, NUM_TOKENS * num_pairs).view(NUM_TOKENS, num_pairs).to(device)
    return RotaryTable(angles.cos(), angles.sin())


def gradients(outputs: tuple[Tensor, ...], source: Tensor) -> tuple[Tensor, ...]:
    """Of a weighted sum with weights that every dtype holds exactly."""
    factors = [torch.arange(out.numel(), device=out.device).remainder(17).sub(8).view(out.shape) for out in outputs]
    return torch.autograd.grad(outputs, source, [f.to(out.dtype) for f, out in zip(factors, outputs, strict=True)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_split_and_rotate(
    shape: tuple[int, int, int, int], interleaved: bool, dtype: torch.dtype, device: torch.device
) -> None:
    from slime_megatron.transformer.rotary.kernels import split_and_rotate

    num_groups, num_heads, size, num_pairs = shape
    angles = table(num_pairs, device)
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(NUM_TOKENS, num_groups, num_heads + 2, size, generator=generator).to(device, dtype)
    qkv.requires_grad_()
    got = split_and_rotate(qkv, *angles, interleaved)
    exact = qkv.detach().double().requires_grad_()
    wanted = plain_split_and_rotate(exact, *angles, interleaved)
    assert [out.shape for out in got] == [out.shape for out in wanted]
    pairs = [*zip(got, wanted, strict=True), *zip(gradients(got, qkv), gradients(wanted, exact), strict=True)]
    for ours, reference in pairs:
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), reference, **TOLERANCES[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("interleaved", [True, False])
def test_rotate(interleaved: bool, device: torch.device) -> None:
    from slime_megatron.transformer.rotary.kernels import rotate

    angles = table(4, device)
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(NUM_TOKENS, 5, 12, generator=generator).to(device).requires_grad_()
    exact = heads.detach().double().requires_grad_()
    got, wanted = rotate(heads, *angles, interleaved), plain_rotate(exact, *angles, interleaved)
    torch.testing.assert_close(got.double(), wanted, **TOLERANCES[torch.float32])
    (grad,), (wanted_grad,) = gradients((got,), heads), gradients((wanted,), exact)
    torch.testing.assert_close(grad.double(), wanted_grad, **TOLERANCES[torch.float32])
