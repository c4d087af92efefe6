"""The norm of GPUs against torch's in float64: 2e-6 of numbers of some units, what fp32 loses of sums of a thousand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.gpu
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("shape", [(7, 96), (3, 5, 1100), (0, 64), (1200, 8)], ids=str)
def test_equals_torchs_in_float64(shape: tuple[int, ...], zero_centered: bool, device: torch.device) -> None:
    from slime_megatron.train.model.norm import rms_norm

    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(*shape[:-1], shape[-1] + 3, generator=generator)
    weight, gradient = torch.rand(shape[-1], generator=generator), torch.randn(shape, generator=generator)
    x = wide.clone().to(device)[..., 1:-2].requires_grad_()  # rows do not follow one another
    own = weight.clone().to(device).requires_grad_()
    found = rms_norm(x, own, 1e-5, zero_centered=zero_centered)
    found.backward(gradient.to(device))

    exact, factor = wide[..., 1:-2].double().requires_grad_(), weight.double().requires_grad_()
    wanted = F.rms_norm(exact, factor.shape, factor + zero_centered, 1e-5)
    wanted.backward(gradient.double())
    for got, want in ((found, wanted), (x.grad, exact.grad), (own.grad, factor.grad)):
        torch.testing.assert_close(got.cpu().double(), want, rtol=2e-6, atol=2e-5)
