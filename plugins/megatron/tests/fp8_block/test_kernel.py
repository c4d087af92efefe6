"""The kernel that quantises: blocks, edges and scales (without a GPU: in Triton's interpreter)."""

import pytest
import torch

from slime_megatron.fp8_block import blocks
from slime_megatron.fp8_block.config import BLOCK
from slime_megatron.fp8_block.quantizer import quantize

SHAPES = [(128, 128), (1, 1), (200, 300), (130, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize("powers_of_two", [False, True])
def test_many_matrices_at_once(device, powers_of_two):
    """E4M3 numbers times 2^-5, so that nothing is rounded: the interpreter rounds otherwise than GPUs."""
    from slime_megatron.fp8_block import kernel

    dtypes = (torch.bfloat16, torch.float32)
    matrices = [on_the_grid(shape, dtype, seed) for seed in range(3) for shape in SHAPES for dtype in dtypes]
    matrices.append(torch.zeros(BLOCK, BLOCK))
    got = kernel.quantize([matrix.to(device) for matrix in matrices], powers_of_two)
    wanted = quantize(matrices, powers_of_two=powers_of_two)
    for (weight, scales), (other, other_scales) in zip(got, wanted, strict=True):
        assert torch.equal(weight.cpu().view(torch.uint8), other.view(torch.uint8))
        assert torch.equal(scales.cpu(), other_scales)


@pytest.mark.gpu
@pytest.mark.parametrize("powers_of_two", [False, True])
def test_a_block_with_nan_is_nan_as_a_whole(device, powers_of_two):
    from slime_megatron.fp8_block import kernel

    matrix = on_the_grid((200, 300), torch.float32, 0)
    matrix[3, 130] = float("nan")
    ((weight, scales),) = kernel.quantize([matrix.to(device)], powers_of_two)
    ((other, other_scales),) = quantize([matrix], powers_of_two=powers_of_two)
    assert scales.isnan().tolist() == other_scales.isnan().tolist() == [[False, True, False], [False] * 3]
    values = blocks.dequantize(weight.cpu(), scales.cpu(), (BLOCK, BLOCK), torch.float32)
    assert values.isnan().equal(blocks.dequantize(other, other_scales, (BLOCK, BLOCK), torch.float32).isnan())
    assert values[:128, 128:256].isnan().all()


def on_the_grid(shape, dtype, seed):
    numbers = torch.arange(256, dtype=torch.uint8).view(blocks.E4M3).float()
    numbers = numbers[numbers.isfinite()]
    matrix = numbers[torch.randint(len(numbers), shape, generator=torch.Generator().manual_seed(shape[0] + seed))]
    matrix[::BLOCK, ::BLOCK] = 448
    return (matrix * 2**-5).to(dtype)
