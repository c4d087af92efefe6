"""The SwiGLU kernels against float64. bf16 results are rounded once (the interpreter cuts them off: 2^-7 relative)."""

import pytest
import torch
import torch.nn.functional as F

TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-6}}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 8), (2, 1, 2050), (5, 1, 2 * 1024)])
def test_equals_float64(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    from slime_megatron.transformer.mlp.kernels import swiglu

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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 8), (2, 2050), (5, 2 * 1024), (0, 8)])
def test_a_weight_for_each_row(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    """The weights are fp32, as a router's are, and so are their gradients: sums over the features."""
    from slime_megatron.transformer.mlp.kernels import swiglu

    generator = torch.Generator().manual_seed(0)
    gate_up = (3 * torch.randn(shape, generator=generator)).to(device, dtype).requires_grad_()
    weights = torch.rand(shape[0], generator=generator).to(device).requires_grad_()
    out = swiglu(gate_up, weights)
    grad_out = torch.randn(out.shape, generator=generator).to(device, dtype)
    grads = torch.autograd.grad(out, (gate_up, weights), grad_out)

    exact, exact_weights = gate_up.detach().double().requires_grad_(), weights.detach().double().requires_grad_()
    gate, up = exact.chunk(2, dim=-1)
    wanted = F.silu(gate) * up * exact_weights[:, None]
    wanted_grads = torch.autograd.grad(wanted, (exact, exact_weights), grad_out.double())
    assert [out.dtype, grads[0].dtype, grads[1].dtype] == [dtype, dtype, torch.float32]
    torch.testing.assert_close(out.detach().double(), wanted.detach(), **TOLERANCES[dtype])
    torch.testing.assert_close(grads[0].double(), wanted_grads[0], **TOLERANCES[dtype])
    torch.testing.assert_close(grads[1].double(), wanted_grads[1], rtol=1e-5, atol=1e-4)
