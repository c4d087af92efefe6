"""FP8 weights: E4M3 values with an fp32 scale for each block, value = weight x scale.

    scale = max(|block|) / 448, in fp32, not below 2^-126; `powers_of_two` rounds it up to one
    weight = block / scale, in fp32, to the nearest E4M3 (ties to even)

448 is the largest E4M3. The least scale makes a block of zeros safe. A block with NaN in it has the scale NaN and is
NaN as a whole, so that a model with broken weights says so. Blocks begin at the first row and column; those at the end
may be smaller. A weight that is quantised, dequantised to bf16 and quantised again has the same bytes, unless its
scales are powers of two: there a largest value that fell to half the range moves to another scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
_LEAST_SCALE = torch.finfo(torch.float32).tiny
_MANTISSA = (1 << 23) - 1
_AT_ONCE = 2**18
"""Elements on their way through fp32 on a CPU: what its caches hold."""

Quantized = tuple[Tensor, Tensor]
"""E4M3 [rows, columns] and fp32 [row blocks, column blocks]."""


@torch.no_grad()
def quantize_blocks(matrix: Tensor, block: tuple[int, int], *, powers_of_two: bool = False) -> Quantized:
    """In blocks of any size: (1, columns) is one scale a channel, (rows, columns) one a tensor.

    Besides the result it needs memory for a few rows of blocks.
    """
    scales = find_scales(matrix, block, powers_of_two=powers_of_two)
    return quantize_by(matrix, scales, block), scales


@torch.no_grad()
def quantize_by(matrix: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """E4M3 [rows, columns] by scales that were found before; memory as `quantize_blocks`."""
    weight = torch.empty(matrix.shape, dtype=E4M3, device=matrix.device)
    for rows, each in _by_rows(matrix.shape, block, scales):
        weight[rows] = (matrix[rows] / each).to(E4M3)  # in fp32, as the scales
    return weight


@torch.no_grad()
def dequantize(weight: Tensor, scales: Tensor, block: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """weight x scale in fp32, rounded to `dtype`; memory as `quantize_blocks`."""
    matrix = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    for rows, each in _by_rows(weight.shape, block, scales.float()):
        matrix[rows] = _widen(weight[rows]).mul_(each)
    return matrix


def _widen(values: Tensor) -> Tensor:
    """E4M3 in fp32, exactly.

    torch converts one element at a time on a CPU. Whole vectors go by fp16: its sign, exponent and mantissa take E4M3's
    bits as they are, subnormal ones too, and are the value / 2^8 then. Only NaN (0x7f, 0xff) is none there.
    """
    if values.is_cuda or values.view(torch.int8).amax() == 0x7F or values.view(torch.uint8).amax() == 0xFF:
        return values.float()
    bits = values.view(torch.int8).to(torch.int16).bitwise_left_shift_(7)  # the sign is in bits 14 and 15
    return bits.bitwise_and_(~0x4000).view(torch.float16).float().mul_(2**8)


def scales_shape(shape: Sequence[int], block: tuple[int, int]) -> tuple[int, int]:
    """[row blocks, column blocks] of a matrix."""
    rows, columns = shape
    return -(-rows // block[0]), -(-columns // block[1])


@torch.no_grad()
def find_scales(matrix: Tensor, block: tuple[int, int], *, powers_of_two: bool = False) -> Tensor:
    """fp32 [row blocks, column blocks]."""
    num_rows, num_columns = scales_shape(matrix.shape, block)
    largest = matrix.new_zeros(num_rows, num_columns, dtype=torch.float32)
    for rows in _rows(matrix.shape, block):
        each = matrix[rows].abs()
        if block[0] > 1:
            each = each.amax(0, keepdim=True)
        columns = torch.nn.functional.pad(each, (0, -matrix.shape[1] % block[1]))
        found = largest[_blocks(rows, block)]
        torch.maximum(found, columns.view(len(each), num_columns, -1).amax(-1).float(), out=found)
    scales = (largest / LARGEST).clamp_(min=_LEAST_SCALE)
    return round_up(scales) if powers_of_two else scales


def round_up(scales: Tensor) -> Tensor:
    """To powers of two: positive normal fp32 numbers whose mantissa is not 0 go one exponent up; NaN stays NaN."""
    bits = scales.view(torch.int32)
    rounded = ((bits + _MANTISSA) & ~_MANTISSA).view(torch.float32)
    return torch.where(scales.isnan(), scales, rounded)  # its bits would overflow to -0, and the block become zeros


def _rows(shape: Sequence[int], block: tuple[int, int]) -> Iterator[slice]:
    """Runs of rows that go through caches: of one row of blocks, or of several where these are one row high."""
    most = max(1, _AT_ONCE // max(1, shape[1]))
    height = shape[0] if block[0] == 1 else block[0]
    for start in range(0, shape[0], height):
        end = min(start + height, shape[0])
        for first in range(start, end, most):
            yield slice(first, min(first + most, end))


def _blocks(rows: slice, block: tuple[int, int]) -> slice:
    """Rows of blocks that a run lies in."""
    return slice(rows.start // block[0], (rows.stop - 1) // block[0] + 1)


def _by_rows(shape: Sequence[int], block: tuple[int, int], scales: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Runs of rows, and their scales by column ([1 or rows, 1 or columns])."""
    assert tuple(scales.shape) == scales_shape(shape, block), f"{tuple(scales.shape)} scales for {tuple(shape)}"
    blocks: slice | None = None
    each = scales
    for rows in _rows(shape, block):
        if blocks != (blocks := _blocks(rows, block)):  # several runs lie in a row of blocks
            each = scales[blocks]
            each = each if each.shape[1] == 1 else each.repeat_interleave(block[1], 1)[:, : shape[1]]
        yield rows, each
