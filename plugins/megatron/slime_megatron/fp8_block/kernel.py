"""`slime_megatron.fp8_block.quantizer.quantize` of many matrices, on CUDA: every block is read once and written once.

Matrices that are alike (experts are, layer after layer) go in one launch: their results are contiguous, so that
a block finds its matrix by a division, and the one table there is has the addresses of the matrices. What the host does
for each is little: it must be done with a batch before the device is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from slime_megatron.fp8_block.blocks import E4M3, LARGEST, Quantized, scales_shape
from slime_megatron.fp8_block.config import BLOCK

_POINTERS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
NUM_WARPS = 8
NUMBERS = ("num_rows", "num_columns", "blocks_down", "blocks_across")
Kind = tuple[torch.Size, torch.dtype, bool]
"""Shape, dtype, and whether rows begin at multiples of 16 bytes and elements: several are read and written at once."""


def quantize(matrices: Sequence[Tensor], powers_of_two: bool) -> list[Quantized]:
    """In the order of the matrices, one launch for each kind; the host does not wait for the device.

    The results of one kind are views of one allocation, which lives as long as one of them does.
    """
    matrices = [matrix.detach().contiguous() for matrix in matrices]
    done: dict[int, Quantized] = {}
    for (shape, dtype, aligned), numbers, *tensors in prepare(matrices):
        _, weights, scales = tensors
        kernel[(scales.numel(),)](
            *tensors,
            *shape,
            *scales.shape[1:],
            KIND=_POINTERS[dtype],
            BLOCK=BLOCK,
            LARGEST=LARGEST,
            ALIGNED=aligned,
            POWERS_OF_TWO=powers_of_two,
            num_warps=NUM_WARPS,
        )
        done |= zip(numbers, zip(weights.unbind(), scales.unbind(), strict=True), strict=True)
    return [done[number] for number in range(len(matrices))]


def prepare(matrices: Sequence[Tensor]) -> list[tuple[Kind, list[int], Tensor, Tensor, Tensor]]:
    """By kind: the positions of its matrices, their addresses [num_matrices] int64, and room for weights and scales,
    [num_matrices, ...]; one copy to the device for all.

    Args:
        matrices: dense, of one device; they live until the device is done.
    """
    device, kinds = matrices[0].device, _alike(matrices)
    in_order = [matrices[number].data_ptr() for numbers in kinds.values() for number in numbers]
    addresses = torch.tensor(in_order, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    launches, first = [], 0
    for kind, numbers in kinds.items():
        weights = torch.empty(len(numbers), *kind[0], dtype=E4M3, device=device)
        scales = torch.empty(len(numbers), *scales_shape(kind[0], (BLOCK, BLOCK)), device=device)
        launches.append((kind, numbers, addresses[first : first + len(numbers)], weights, scales))
        first += len(numbers)
    return launches


def _alike(matrices: Sequence[Tensor]) -> dict[Kind, list[int]]:
    """The positions of the matrices of each kind."""
    kinds: dict[Kind, list[int]] = defaultdict(list)
    for number, matrix in enumerate(matrices):
        kinds[matrix.shape, matrix.dtype, matrix.size(1) % 16 == 0 and matrix.data_ptr() % 16 == 0].append(number)
    return kinds


# The numbers and the first address are of any size: without this Triton would compile again for some of them.
@triton.jit(do_not_specialize=("addresses", *NUMBERS))  # type: ignore[untyped-decorator]
def kernel(  # type: ignore[no-untyped-def]
    addresses,
    weights,
    scales,
    num_rows,
    num_columns,
    blocks_down,
    blocks_across,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    ALIGNED: tl.constexpr,
    POWERS_OF_TWO: tl.constexpr,
):
    block = tl.program_id(0)
    owner = block // (blocks_down * blocks_across)
    matrix = tl.load(addresses + owner).to(tl.pointer_type(KIND))
    # In 64 bits: experts of a layer have more than 2^31 elements together.
    weight = weights + owner.to(tl.int64) * num_rows * num_columns
    if ALIGNED:
        num_columns = num_columns // 16 * 16  # as it is; a hint (`tl.multiple_of`) does not reach an argument
        matrix, weight = tl.multiple_of(matrix, 16), tl.multiple_of(weight, 16)
    place = block % (blocks_down * blocks_across)
    row = (place // blocks_across).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = (place % blocks_across) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < num_columns)
    at = row * num_columns + column
    value = tl.load(matrix + at, mask=inside, other=0.0).to(tl.float32)
    # By bits, as whose integers absolute values are in the same order and NaN is above all: maxima of floats drop it.
    largest = tl.max(tl.abs(value).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    scale = tl.div_rn(largest, LARGEST)
    scale = tl.where(scale < 1.1754943508222875e-38, 1.1754943508222875e-38, scale)
    if POWERS_OF_TWO:
        rounded = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & -0x800000).to(tl.float32, bitcast=True)
        scale = tl.where(scale != scale, scale, rounded)
    tl.store(scales + block, scale)
    if (scale > 1e-30) & (scale < 1e30):
        # As division, which costs more than there is time for: one correction of a product by the reciprocal rounds
        # rightly (Markstein 1990), as long as nothing is subnormal that does not end as 0. Its 0 has lost the sign.
        inverse = tl.div_rn(1.0, scale)
        product = value * inverse
        corrected = tl.fma(
            tl.fma(-product, scale + tl.zeros_like(value), value), inverse + tl.zeros_like(value), product
        )
        quotient = tl.where(product == 0, product, corrected)
    else:
        quotient = tl.div_rn(value, scale + tl.zeros_like(value))
    tl.store(weight + at, quotient.to(tl.float8e4nv), mask=inside)
