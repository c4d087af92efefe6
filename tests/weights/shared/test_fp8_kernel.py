"""The kernel that quantises: blocks, edges and scales (without a GPU: in Triton's interpreter)."""

import pytest
import torch

from slime.config.fp8 import BLOCK
from slime.weights.shared import fp8

SHAPES = [(128, 128), (1, 1), (200, 300), (130, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize("powers_of_two", [False, True])
def test_many_matrices_at_once(device, powers_of_two):
    """E4M3 numbers times 2^-5, so that nothing is rounded: the interpreter rounds otherwise than GPUs."""
    from slime.weights.shared import fp8_kernel

    dtypes = (torch.bfloat16, torch.float32)
    matrices = [on_the_grid(shape, dtype, seed) for seed in range(3) for shape in SHAPES for dtype in dtypes]
    matrices.append(torch.zeros(BLOCK, BLOCK))
    got = fp8_kernel.quantize([matrix.to(device) for matrix in matrices], powers_of_two)
    wanted = fp8.quantize(matrices, powers_of_two=powers_of_two)
    for (weight, scales), (other, other_scales) in zip(got, wanted, strict=True):
        assert torch.equal(weight.cpu().view(torch.uint8), other.view(torch.uint8))
        assert torch.equal(scales.cpu(), other_scales)


def on_the_grid(shape, dtype, seed):
    numbers = torch.arange(256, dtype=torch.uint8).view(fp8.E4M3).float()
    numbers = numbers[numbers.isfinite()]
    matrix = numbers[torch.randint(len(numbers), shape, generator=torch.Generator().manual_seed(shape[0] + seed))]
    matrix[::BLOCK, ::BLOCK] = 448
    return (matrix * 2**-5).to(dtype)
