"""E4M3 in blocks: every byte against float64 and a table of all E4M3 numbers, and against other quantisers."""

import bisect

import numpy as np
import pytest
import torch

from slime_megatron.fp8_block import blocks
from slime_megatron.fp8_block.config import BLOCK
from slime_megatron.fp8_block.quantizer import quantize

SHAPES = [(128, 128), (1, 1), (256, 384), (200, 300), (130, 64), (576, 256)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def random(shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(shape[0] * shape[1])
    spread = torch.randn(shape, generator=generator).mul_(2).exp_()  # some values far below their block's largest
    return (torch.randn(shape, generator=generator) * spread * 0.01).to(dtype)


def e4m3() -> tuple[list[float], list[int]]:
    """All numbers from 0 to 448 by the format's definition (OCP 8-bit floating point, 2023), and their bytes."""
    numbers = []
    for byte in range(0x7F):
        exponent, mantissa = byte >> 3, byte & 7
        numbers.append(mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return numbers, list(range(0x7F))


def nearest_byte(value: float) -> int:
    numbers, codes = e4m3()
    magnitude, sign = abs(value), 0x80 if np.signbit(value) else 0
    above = min(bisect.bisect_left(numbers, magnitude), len(numbers) - 1)
    below = max(above - 1, 0)
    to_above, to_below = numbers[above] - magnitude, magnitude - numbers[below]
    if to_above != to_below:
        return sign | (codes[above] if to_above < to_below else codes[below])
    return sign | (codes[above] if codes[above] % 2 == 0 else codes[below])


def reference(matrix, powers_of_two):
    """Block by block in float64; scale and quotient are rounded to fp32, which is the format's rule."""
    values = matrix.double().numpy()
    rows, columns = values.shape
    scales = np.zeros((-(-rows // BLOCK), -(-columns // BLOCK)), np.float32)
    codes = np.zeros(values.shape, np.uint8)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = np.s_[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
            scale = max(np.float32(np.abs(values[place]).max() / 448), np.float32(2.0**-126))
            if powers_of_two:
                scale = np.float32(2.0 ** np.ceil(np.log2(np.float64(scale))))
            scales[i, j] = scale
            quotients = (values[place] / np.float64(scale)).astype(np.float32)
            codes[place] = np.vectorize(nearest_byte, otypes=[np.uint8])(quotients)
    return codes, scales


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("powers_of_two", [False, True])
def test_what_is_not_finite_is_loud(powers_of_two, value):
    """The whole block is NaN then, and the others stay as they are."""
    matrix = random((200, 300))
    (whole, scales), *_ = quantize([matrix], powers_of_two=powers_of_two)
    matrix[3, 130] = value
    ((broken, broken_scales),) = quantize([matrix], powers_of_two=powers_of_two)
    values = blocks.dequantize(broken, broken_scales, (BLOCK, BLOCK), torch.bfloat16)
    assert values[:128, 128:256].isnan().all()
    broken_scales[0, 1] = scales[0, 1]
    assert torch.equal(broken_scales, scales)
    assert not values[:, :128].isnan().any()
    assert torch.equal(broken[128:].view(torch.uint8), whole[128:].view(torch.uint8))


@pytest.mark.parametrize("powers_of_two", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(128, 128), (130, 64), (200, 150)])
def test_every_byte_is_the_references(shape, dtype, powers_of_two):
    matrix = random(shape, dtype)
    codes, scales = reference(matrix, powers_of_two)
    [(weight, found)] = quantize([matrix], powers_of_two=powers_of_two)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), scales)
    np.testing.assert_array_equal(weight.view(torch.uint8).numpy(), codes)


def test_ties_go_to_even():
    """Every number halfway between two E4M3 numbers, in a block whose scale is 1."""
    numbers = torch.tensor(e4m3()[0], dtype=torch.float64)
    halfway = (numbers[1:] + numbers[:-1]) / 2
    matrix = torch.zeros(2, BLOCK)
    matrix[0, : len(halfway)], matrix[1, : len(halfway)] = halfway, -halfway
    matrix[0, -1] = 448
    [(weight, scales)] = quantize([matrix])
    assert scales.item() == 1
    np.testing.assert_array_equal(weight.view(torch.uint8).numpy(), reference(matrix, False)[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_is_what_compressed_tensors_makes(shape):
    """Another implementation: symmetric 8-bit floats, one scale a block."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize as theirs_of

    matrix = random(shape, torch.float32)
    [(weight, scales)] = quantize([matrix])
    args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[BLOCK, BLOCK])
    theirs = theirs_of(matrix, scales, torch.zeros_like(scales), args, dtype=torch.float8_e4m3fn)
    assert torch.equal(weight.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("shape", SHAPES)
def test_powers_of_two_are_deepgemms(shape):
    """`per_block_cast_to_fp8`, which SGLang has from DeepGEMM, makes such scales for Blackwell."""
    from sglang.srt.layers.quantization.fp8_utils import per_block_cast_to_fp8

    matrix = random(shape)
    theirs, their_scales = per_block_cast_to_fp8(matrix)
    [(weight, scales)] = quantize([matrix], powers_of_two=True)
    assert torch.equal(scales, their_scales)
    assert torch.equal(weight.view(torch.uint8), theirs.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_dequantizes_as_sglang(shape, dtype):
    from sglang.srt.layers.quantization.fp8_utils import block_quant_dequant

    [(weight, scales)] = quantize([random(shape)])
    found = blocks.dequantize(weight, scales, (BLOCK, BLOCK), dtype)
    assert torch.equal(found, block_quant_dequant(weight, scales, [BLOCK, BLOCK], dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_survive_the_way_through_bf16(shape):
    [(weight, scales)] = quantize([random(shape)])
    [(again, again_scales)] = quantize([blocks.dequantize(weight, scales, (BLOCK, BLOCK), torch.bfloat16)])
    assert torch.equal(scales, again_scales)
    assert torch.equal(weight.view(torch.uint8), again.view(torch.uint8))


@pytest.mark.parametrize("block", [(1, 300), (200, 300), (1, 64), (128, 300)])
def test_other_blocks(block):
    """One scale a channel, one a tensor, and groups: each block alone is a matrix of one block."""
    matrix = random((200, 300))
    weight, scales = blocks.quantize_blocks(matrix, block)
    assert scales.shape == blocks.scales_shape(matrix.shape, block)
    for i, j in [(0, 0), (scales.shape[0] - 1, scales.shape[1] - 1)]:
        place = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
        alone = matrix[place]
        assert scales[i, j] == alone.abs().max().float() / 448
        expected = (alone.float() / scales[i, j]).to(torch.float8_e4m3fn)
        assert torch.equal(weight[place].view(torch.uint8), expected.view(torch.uint8))
    error = blocks.dequantize(weight, scales, block, torch.float32) - matrix.float()
    assert error.abs().max() <= scales.max() * 16  # half the distance of the largest E4M3 numbers


@pytest.mark.parametrize("powers_of_two", [False, True])
@pytest.mark.parametrize("value", [0.0, 1e-45, 2.0**-133, 3e38])
def test_the_ends_of_the_range_are_safe(value, powers_of_two):
    """Blocks of zeros, of numbers below what a scale can be, and of the largest numbers."""
    matrix = torch.full((BLOCK, BLOCK), value)
    [(weight, scales)] = quantize([matrix], powers_of_two=powers_of_two)
    assert scales.item() > 0
    back = blocks.dequantize(weight, scales, (BLOCK, BLOCK), torch.float32)
    assert torch.allclose(back, matrix, rtol=2**-4, atol=2.0**-126)


def test_a_number_that_is_none_stays_visible():
    matrix = torch.ones(BLOCK, BLOCK)
    matrix[3, 5] = torch.nan
    [(weight, scales)] = quantize([matrix])
    assert blocks.dequantize(weight, scales, (BLOCK, BLOCK), torch.float32)[3, 5].isnan()


@pytest.mark.parametrize("with_nan", [False, True])
def test_every_e4m3_number_keeps_its_value(with_nan):
    """Whole vectors of them (`_widen`) as torch converts them one by one, zeros with their signs."""
    codes = [code for code in range(256) if with_nan or code & 0x7F != 0x7F]
    weight = torch.tensor(codes, dtype=torch.uint8).view(blocks.E4M3).repeat(3, 1)
    found = blocks.dequantize(weight, torch.ones(1, 1), (3, len(codes)), torch.float32)
    assert found.isnan().sum() == (6 if with_nan else 0)
    assert torch.equal(found.nan_to_num().view(torch.int32), weight.float().nan_to_num().view(torch.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("powers_of_two", [False, True])
def test_the_kernel_rounds_alike(device, powers_of_two):
    """On a GPU: Triton's interpreter rounds otherwise (it runs `test_kernel.py`)."""
    matrices = [random(shape, dtype) for shape in [*SHAPES, (2048, 7168)] for dtype in DTYPES]
    matrices += [torch.full((BLOCK, BLOCK), value) for value in (0.0, 1e-45, 3e38)]
    got = quantize([matrix.to(device) for matrix in matrices], powers_of_two=powers_of_two)
    for (weight, scales), wanted in zip(got, quantize(matrices, powers_of_two=powers_of_two), strict=True):
        assert torch.equal(weight.cpu().view(torch.uint8), wanted[0].view(torch.uint8))
        assert torch.equal(scales.cpu(), wanted[1])


def test_the_kernel_moves_whole_vectors():
    """Compiled for an H100, which need not be there: what is aligned is read and written 16 bytes at a time."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from slime_megatron.fp8_block import kernel

    types = {"addresses": "*i64", "weights": "*fp8e4nv", "scales": "*fp32", **dict.fromkeys(kernel.NUMBERS, "i32")}
    values = {"KIND": triton.language.bfloat16, "BLOCK": BLOCK, "LARGEST": 448.0, "ALIGNED": True}
    values["POWERS_OF_TWO"] = False
    aligned = {(position,): [["tt.divisibility", 16]] for position in (1, 2)}  # as torch allocates
    source = ASTSource(kernel.kernel, types | dict.fromkeys(values, "constexpr"), values, aligned)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernel.NUM_WARPS}).asm["ptx"]
    elements = BLOCK * BLOCK // (kernel.NUM_WARPS * 32)  # of a thread
    assert ptx.count("ld.global.v4.b32") == elements * 2 // 16
    assert ptx.count("st.global.v4.b32") == elements // 16
