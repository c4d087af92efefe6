"""Weight gradients of all experts in one call, against products in float64, and sums of rows.

Products of bf16 numbers are exact in fp32: what is left is the order of the additions, 1e-5 of sums of a few hundred.
"""

from __future__ import annotations

import pytest
import torch

SIZES = [(16, 24), (150, 300)]
COUNTS = [[3, 0, 130, 64], [0, 0, 0, 0], [1]]


@pytest.mark.gpu
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_adds_what_float64_gives(sizes: tuple[int, int], counts: list[int], device: torch.device) -> None:
    """In fp32 without a GPU: the interpreter multiplies no bf16."""
    from slime_megatron.mixture_of_experts.kernels import add_weight_gradients

    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rows, gradient = (torch.randn(sum(counts), size, generator=generator).to(device, dtype) for size in sizes)
    totals = torch.ones(len(counts), *sizes, device=device)
    ends = torch.tensor(counts, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    add_weight_gradients(totals, rows, gradient, ends)
    pairs = zip(torch.split(rows.double(), counts), torch.split(gradient.double(), counts), strict=True)
    wanted = torch.stack([1 + of_rows.t() @ of_result for of_rows, of_result in pairs])
    torch.testing.assert_close(totals.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [2, 8])
def test_sums_of_rows_are_those_of_float64(num_rows: int, device: torch.device) -> None:
    """1e-6 of fp32 numbers of some units: of at most eight addends."""
    from slime_megatron.mixture_of_experts.kernels import sums_of_rows

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7 * num_rows, 1100, generator=generator)
    places = torch.randperm(len(rows), generator=generator).view(7, num_rows)
    sums = sums_of_rows(rows.to(device), places.to(device))
    wanted = rows.double()[places].sum(dim=1)
    torch.testing.assert_close(sums.cpu().double(), wanted, rtol=1e-6, atol=2e-6)


@pytest.mark.gpu
def test_sums_of_bf16_rows_are_rounded_once(device: torch.device) -> None:
    from slime_megatron.mixture_of_experts.kernels import sums_of_rows

    rows = torch.tensor([[1.0], [2**-8], [2**-8]], dtype=torch.bfloat16, device=device)  # each alone is lost beside 1
    assert sums_of_rows(rows, torch.tensor([[0, 1, 2]], device=device)).item() == 1 + 2**-7
