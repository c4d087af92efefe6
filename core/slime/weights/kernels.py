"""Triton kernels over many tensors in one launch, whatever their sizes, on CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from slime.weights.receipt import BLOCK


def fold(tensors: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """`slime.weights.receipt.fold`; every word is read once."""
    num_blocks = [max(1, triton.cdiv(len(tensor), BLOCK)) for tensor in tensors]
    sums = weights.new_empty(sum(num_blocks))
    jobs, owners = _jobs(tensors, num_blocks, sums.device)
    _fold[(len(sums),)](jobs, owners, weights, sums, BLOCK=BLOCK, num_warps=8)
    return list(torch.split(sums, num_blocks))


def _jobs(tensors: Sequence[Tensor], num_blocks: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """[num_tensors, 3] int64: address, number of words, first block; and of each block the tensor it is of."""
    counts = torch.tensor(num_blocks)
    first = counts.cumsum(0) - counts
    rows = [(tensor.data_ptr(), len(tensor)) for tensor in tensors]
    jobs = torch.cat([torch.tensor(rows), first[:, None]], dim=1)
    owners = torch.arange(len(tensors), dtype=torch.int32).repeat_interleave(counts)
    return jobs.to(device, non_blocking=True), owners.to(device, non_blocking=True)


@triton.jit  # type: ignore[untyped-decorator]
def _fold(jobs, owners, weights, sums, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    job = jobs + tl.load(owners + block) * 3
    words = tl.load(job).to(tl.pointer_type(tl.uint64))
    position = tl.arange(0, BLOCK)
    place = (block - tl.load(job + 2)) * BLOCK + position
    word = tl.load(words + place, mask=place < tl.load(job + 1), other=0)
    first, second = tl.load(weights + position), tl.load(weights + BLOCK + position)
    tl.store(sums + block, tl.sum(word.to(tl.int64) * first + (word >> 32).to(tl.int64) * second, axis=0))
