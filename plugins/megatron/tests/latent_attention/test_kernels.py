"""Queries, keys and values by the kernels, against the plain form in float64.

bf16 results are rounded once (the interpreter cuts them off: 2^-7 relative).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from slime_megatron.latent_attention.heads import plain_heads

TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2**-7, "atol": 2**-7},
}
NUM_TOKENS = 5
SIZES = [(4, 16, 8, 12), (11, 24, 8, 16), (20, 192, 64, 256)]
"""Heads, size of what is not turned, rotary size, size of a value: no powers of two, and GLM-4.7-Flash's."""


@pytest.mark.gpu
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", SIZES)
def test_equals_float64(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, strided: bool, device: torch.device
) -> None:
    """`strided`: gradients as attention may leave them, heads before tokens, and a turning part that is a part of
    more."""
    from slime_megatron.latent_attention.kernels import heads_in_two_passes

    num_heads, size, rotary, value = sizes
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    angles = torch.linspace(0, 9, NUM_TOKENS * rotary // 2).view(NUM_TOKENS, -1).to(device)
    table = angles.cos(), angles.sin()
    whole = random(NUM_TOKENS, 3 + rotary)
    given = [
        random(NUM_TOKENS, num_heads, size + rotary),
        random(NUM_TOKENS, num_heads, size + value),
        whole[:, 3:] if strided else whole[:, 3:].contiguous(),
    ]
    ours = [x.detach().requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in given]
    got, wanted = heads_in_two_passes(*ours, *table), plain_heads(*exact, *table)
    gradients = [random(*out.shape) for out in got]
    if strided:
        gradients = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in gradients]
    of_ours = torch.autograd.grad(got, ours, gradients)
    of_exact = torch.autograd.grad(wanted, exact, [x.double() for x in gradients])
    assert all(out.is_contiguous() for out in got)
    for mine, theirs in zip((*got, *of_ours), (*wanted, *of_exact), strict=True):
        assert mine.dtype == dtype
        # The rotary part's gradient is a sum over the heads.
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), **TOLERANCES[dtype])
