"""No bit of a row of a product depends on the other rows."""

import subprocess
import sys

import pytest
import torch

from batch_invariant.products import product, product_and_sum

PARTS = [slice(0, 1), slice(3, 5), slice(7, 12), slice(16, 49)]
SIZES = [(32, 96), (128, 500), (384, 130)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inner", "columns"), SIZES)
def test_rows_and_columns(dtype, inner, columns):
    left, right = torch.randn(64, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    found, bias = product(left, right.t()), torch.randn(columns).to(dtype)
    near = {"rtol": 1e-2, "atol": 1e-1} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(found.double(), left.double() @ right.double().t(), **near)
    order = torch.randperm(columns)
    assert torch.equal(product(left, right[order].t()), found[:, order]), "where a column stands"
    for rows in PARTS:
        assert torch.equal(product(left[rows], right.t()), found[rows])
        assert torch.equal(product_and_sum(bias, left[rows], right.t()), bias + found[rows])


def test_mkls_own_rows_depend_on_their_number():
    """Or this module would be for nothing."""
    left, right = torch.randn(64, 384), torch.randn(384, 130)
    assert any(not torch.equal(left[rows] @ right, (left @ right)[rows]) for rows in PARTS)


def test_torchs_operators_are_replaced():
    """In a process of its own, as it is for good."""
    code = """
import torch
from batch_invariant.products import product, replace_products
left, right = torch.randn(64, 384), torch.randn(384, 130)
wanted = product(left, right)
replace_products("CPU")
for rows in (slice(0, 1), slice(3, 5)):
    assert torch.equal(left[rows] @ right, wanted[rows])
    assert torch.equal(torch.nn.functional.linear(left[rows], right.t()), wanted[rows])
    assert torch.equal(torch.nn.functional.linear(left[rows], right.t(), right[0]), wanted[rows] + right[0])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
