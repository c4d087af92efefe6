"""The products of several experts, and their gradients: also where one has no rows, and summed in fp32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slime_megatron.mixture_of_experts.exchange import OnHost
from slime_megatron.mixture_of_experts.grouped import Groups, product

COUNTS = torch.tensor([[3, 0, 1], [2, 0, 4]])  # from two ranks to three experts
SHAPE = (3, 4, 6)


def given(dtype: torch.dtype, num_rows: int = 10) -> tuple[Tensor, torch.nn.Parameter, Tensor]:
    """Rows, one parameter for all experts, in another shape, and the gradient of the product."""
    generator = torch.Generator().manual_seed(0)
    rows, weight, gradient = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((num_rows, 4), (4, 18), (num_rows, 6))
    )
    return rows.requires_grad_(), torch.nn.Parameter(weight), gradient


def groups(counts: Tensor = COUNTS) -> Groups:
    return Groups(counts, OnHost(counts))


def test_products_and_gradients() -> None:
    rows, weight, gradient = given(torch.float64)
    result = product(rows, weight, SHAPE, groups(), fused=False)
    result.backward(gradient)
    found = [result.detach(), rows.grad, weight.grad]
    rows, weight, _ = given(torch.float64)
    experts = torch.tensor([0] * 5 + [2] * 5)
    wanted = torch.einsum("rk,rkn->rn", rows, weight.view(SHAPE)[experts])
    wanted.backward(gradient)
    for got, want in zip(found, [wanted.detach(), rows.grad, weight.grad], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_added_to_what_is_there(dtype: torch.dtype) -> None:
    rows, weight, gradient = given(dtype)
    product(rows, weight, SHAPE, groups(), fused=False).backward(gradient)
    alone, of_rows = weight.grad, rows.grad
    rows, weight, _ = given(dtype)
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones(4, 18), False  # type: ignore[attr-defined]
    product(rows, weight, SHAPE, groups(), fused=True).backward(gradient)
    assert weight.grad_added_to_main_grad is True  # type: ignore[attr-defined]
    torch.testing.assert_close(weight.main_grad, 1 + alone.float())  # type: ignore[attr-defined]
    assert torch.equal(rows.grad, of_rows)


@pytest.mark.parametrize("fused", [False, True])
def test_no_rows_at_all(fused: bool) -> None:
    rows, weight, gradient = given(torch.float32, 0)
    weight.main_grad = torch.ones(4, 18)  # type: ignore[attr-defined]
    result = product(rows, weight, SHAPE, groups(torch.zeros_like(COUNTS)), fused=fused)
    result.backward(gradient)
    assert result.shape == (0, 6)
    assert weight.grad is not None
    assert torch.equal(weight.main_grad, torch.ones(4, 18))  # type: ignore[attr-defined]
    assert fused or not weight.grad.any()


def test_frozen_weights_have_no_gradient() -> None:
    rows, weight, gradient = given(torch.float32)
    weight.requires_grad_(False)
    product(rows, weight, SHAPE, groups(), fused=True).backward(gradient)
    assert weight.grad is None
    assert rows.grad is not None
