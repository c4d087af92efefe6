"""`slime.weights.shared.fp8.quantize` of many matrices in one launch, on CUDA: each block is read and written once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from slime.config.fp8 import BLOCK
from slime.weights.shared.fp8 import E4M3, LARGEST, Quantized, scales_shape

_POINTERS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def quantize(matrices: Sequence[Tensor], powers_of_two: bool) -> list[Quantized]:
    """In the order of the matrices, one launch for each dtype and alignment; the host does not wait for the device."""
    matrices = [matrix.detach().contiguous() for matrix in matrices]
    device = matrices[0].device
    outputs = [
        (
            torch.empty(matrix.shape, dtype=E4M3, device=device),
            torch.empty(scales_shape(matrix.shape, (BLOCK, BLOCK)), device=device),
        )
        for matrix in matrices
    ]
    kinds = [(matrix.dtype, _is_aligned(matrix)) for matrix in matrices]
    for kind in dict.fromkeys(kinds):
        pairs = zip(matrices, outputs, strict=True)
        _launch([pair for pair, each in zip(pairs, kinds, strict=True) if each == kind], kind[1], powers_of_two)
    return outputs


def _is_aligned(matrix: Tensor) -> bool:
    """Rows begin at multiples of 16 bytes and elements: several are read and written at once."""
    return matrix.size(1) % 16 == 0 and matrix.data_ptr() % 16 == 0


def _launch(pairs: Sequence[tuple[Tensor, Quantized]], aligned: bool, powers_of_two: bool) -> None:
    device = pairs[0][0].device
    num_blocks = [scales.numel() for _, (_, scales) in pairs]
    first_blocks = accumulate(num_blocks[:-1], initial=0)
    rows = [
        (first, *matrix.shape, matrix.data_ptr(), weight.data_ptr(), scales.data_ptr(), number)
        for first, (matrix, (weight, scales)), number in zip(first_blocks, pairs, num_blocks, strict=True)
    ]
    jobs = torch.tensor(rows, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    owners = torch.repeat_interleave(jobs[:, -1], output_size=sum(num_blocks))
    _quantize[(len(owners),)](
        jobs,
        owners,
        KIND=_POINTERS[pairs[0][0].dtype],
        JOB=jobs.size(1),
        BLOCK=BLOCK,
        LARGEST=LARGEST,
        ALIGNED=aligned,
        POWERS_OF_TWO=powers_of_two,
        num_warps=8,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _quantize(  # type: ignore[no-untyped-def]
    jobs,
    owners,
    KIND: tl.constexpr,
    JOB: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    ALIGNED: tl.constexpr,
    POWERS_OF_TWO: tl.constexpr,
):
    block = tl.program_id(0)
    job = jobs + tl.load(owners + block) * JOB
    num_rows, num_columns = tl.load(job + 1), tl.load(job + 2)
    matrix = tl.load(job + 3).to(tl.pointer_type(KIND))
    weight = tl.load(job + 4).to(tl.pointer_type(tl.float8e4nv))
    scales = tl.load(job + 5).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        num_columns = tl.multiple_of(num_columns, 16)
        matrix, weight = tl.multiple_of(matrix, 16), tl.multiple_of(weight, 16)
    place = block - tl.load(job)
    blocks_across = tl.cdiv(num_columns, BLOCK)
    row = (place // blocks_across) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = (place % blocks_across) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < num_columns)
    at = row * num_columns + column
    value = tl.load(matrix + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(value)), LARGEST), 1.1754943508222875e-38)
    if POWERS_OF_TWO:
        scale = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & -0x800000).to(tl.float32, bitcast=True)
    tl.store(scales + place, scale)
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
