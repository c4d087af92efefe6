"""`slime.weights.fp8.quantize` of many matrices in one launch, on CUDA: every block is read once and written once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from slime.config.fp8 import BLOCK
from slime.weights.fp8 import E4M3, LARGEST, Quantized, scales_shape

_POINTERS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def quantize(matrices: Sequence[Tensor], powers_of_two: bool) -> list[Quantized]:
    """In the order of the matrices, in one launch a dtype; the host does not wait for the device."""
    matrices = [matrix.detach().contiguous() for matrix in matrices]
    device = matrices[0].device
    outputs = [
        (
            torch.empty(matrix.shape, dtype=E4M3, device=device),
            torch.empty(scales_shape(matrix.shape, (BLOCK, BLOCK)), device=device),
        )
        for matrix in matrices
    ]
    for dtype in dict.fromkeys(matrix.dtype for matrix in matrices):
        _launch([pair for pair in zip(matrices, outputs, strict=True) if pair[0].dtype == dtype], powers_of_two)
    return outputs


def _launch(pairs: Sequence[tuple[Tensor, Quantized]], powers_of_two: bool) -> None:
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
    POWERS_OF_TWO: tl.constexpr,
):
    block = tl.program_id(0)
    job = jobs + tl.load(owners + block) * JOB
    num_rows, num_columns = tl.load(job + 1), tl.load(job + 2)
    matrix = tl.load(job + 3).to(tl.pointer_type(KIND))
    weight = tl.load(job + 4).to(tl.pointer_type(tl.float8e4nv))
    scales = tl.load(job + 5).to(tl.pointer_type(tl.float32))
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
    tl.store(weight + at, tl.div_rn(value, scale + tl.zeros_like(value)).to(tl.float8e4nv), mask=inside)
