"""The SwiGLU kernels against float64. bf16 results are rounded once (the interpreter cuts them off: 2^-7 relative)."""

import pytest
import torch
import torch.nn.functional as F

TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-6}}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 8), (2, 1, 2050), (5, 1, 2 * 1024)])
def test_equals_float64(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    from slime_plugin_transformer.mlp.kernels import swiglu

    generator = torch.Generator().manual_seed(0)
    gate_up = (3 * torch.randn(shape, generator=generator)).to(device, dtype).requires_grad_()
    out = swiglu(gate_up)
    grad_out = torch.randn(out.shape, generator=generator).to(device, dtype)
    (grad,) = torch.autograd.grad(out, gate_up, grad_out)

    exact = gate_up.detach().double().requires_grad_()
    gate, up = exact.chunk(2, dim=-1)
    wanted = F.silu(gate) * up
    (wanted_grad,) = torch.autograd.grad(wanted, exact, grad_out.double())
    assert out.dtype == grad.dtype == dtype
    torch.testing.assert_close(out.double(), wanted.detach(), **TOLERANCES[dtype])
    torch.testing.assert_close(grad.double(), wanted_grad, **TOLERANCES[dtype])
