"""Kernels against plain torch in float64, and against themselves: no bit of a row depends on what stands beside it."""

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are written in Triton")

from batch_invariant import kernels

from . import sequences


def same(found, wanted):
    """To the bit, on a GPU. The interpreter's products are numpy's, in which a row's place in a block plays a part."""
    if found.is_cuda:
        assert torch.equal(found, wanted)
    else:
        torch.testing.assert_close(found, wanted, rtol=2**-7 if found.dtype == torch.bfloat16 else 1e-5, atol=1e-5)


DTYPES = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_products(device, dtype):
    if dtype == torch.bfloat16 and device.type == "cpu":
        return  # Triton's interpreter multiplies no matrices in bf16
    left = torch.randn(140, 200, device=device).to(dtype)
    right = torch.randn(150, 200, device=device).to(dtype).t()
    found = kernels.product(left, right)
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=DTYPES[dtype], atol=2e-4)
    for rows in (slice(0, 1), slice(7, 12), slice(129, 140)):
        same(kernels.product(left[rows], right), found[rows])
    same(kernels.product(left, right[:, 3:]), found[:, 3:])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_by_expert(device, dtype):
    """Of experts with many rows, with none, with one, and with rows of two parts."""
    if dtype == torch.bfloat16 and device.type == "cpu":
        return
    sizes = [70, 0, 1, 64, 0, 5]
    ends = torch.tensor(sizes).cumsum(0).to(device)
    rows = torch.randn(sum(sizes), 200, device=device).to(dtype)
    matrices = torch.randn(len(sizes), 150, 200, device=device).to(dtype).transpose(1, 2)
    found = kernels.product_by_expert(rows, matrices, ends)
    for part, of_part, matrix in zip(rows.split(sizes), found.split(sizes), matrices, strict=True):
        wanted = part.double() @ matrix.double()
        torch.testing.assert_close(of_part.double(), wanted, rtol=DTYPES[dtype], atol=2e-4)
    alone = torch.tensor([0, 0, 1, 2, 2, 7], device=device)
    few = torch.cat([rows[70:72], rows[135:140]])
    same(kernels.product_by_expert(few, matrices.contiguous(), alone), torch.cat([found[70:72], found[135:140]]))
    assert kernels.product_by_expert(rows[:0], matrices, 0 * ends).shape == (0, 150)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(device, dtype):
    x, weight = torch.randn(9, 3, 48, device=device).to(dtype), torch.randn(48, device=device).to(dtype)
    found = kernels.rms_norm(x, weight, 1e-5)
    exact = torch.nn.functional.rms_norm(x.double(), (48,), weight.double(), 1e-5)
    torch.testing.assert_close(found.double(), exact, rtol=DTYPES[dtype], atol=2e-6)
    same(kernels.rms_norm(x[4:5], weight, 1e-5), found[4:5])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", sequences.HEADS)
def test_attention(device, dtype, heads):
    if dtype == torch.bfloat16 and device.type == "cpu":
        return
    case = sequences.Case(heads, dtype, device, kernels.attention)
    torch.testing.assert_close(case.whole().double(), case.exact(), rtol=0, atol=DTYPES[dtype] * 3)
    case.check_parts(same)
