"""The kernels over weights against what a CPU computes, bit for bit (without a GPU: in Triton's interpreter)."""

import pytest
import torch

from weight_buckets import receipt

SIZES = (0, 1, 4095, 4096, 4097, 20_000)


@pytest.mark.gpu
@pytest.mark.parametrize("level", [0, 2])
def test_fold(level: int, device: torch.device) -> None:
    from weight_buckets import kernels

    generator = torch.Generator().manual_seed(0)
    words = [torch.randint(-(2**63), 2**63 - 1, (size,), generator=generator) for size in SIZES]
    wanted = receipt.fold(words, receipt.hash_multipliers(torch.device("cpu"), level))
    sums, num_blocks = kernels.fold([each.to(device) for each in words], receipt.hash_multipliers(device, level))
    assert sums.tolist() == wanted.sums.tolist()
    assert num_blocks.tolist() == wanted.num_blocks.tolist()


@pytest.mark.gpu
def test_differ(device: torch.device) -> None:
    from weight_buckets import kernels

    one = [torch.arange(size, device=device) for size in SIZES]
    other = [each.clone() for each in one]
    other[2][4094] ^= 1
    other[5][0] ^= -(2**63)
    assert kernels.differ(one, other).tolist() == [False, False, True, False, False, True]
