"""Triton kernels over many tensors in one launch, whatever their sizes, on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

Counts = np.ndarray[Any, np.dtype[np.int64]]
_BLOCK = 4096
"""Words that a program compares."""


def fold(tensors: Sequence[Tensor], weights: Tensor) -> tuple[Tensor, Counts]:
    """`weight_buckets.receipt.fold` of tensors of any dtype that `is_words`; every word is read once."""
    block = weights.size(1)
    jobs, owners, num_blocks = _jobs([tensors], weights.device, block)
    sums = weights.new_empty(len(owners))
    _fold[(len(sums),)](jobs, owners, weights, sums, JOB=jobs.size(1), BLOCK=block, num_warps=8)
    return sums, num_blocks


def differ(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """[num_tensors] boolean: a tensor's words are not those of its counterpart, which has as many (`is_words` all)."""
    jobs, owners, _ = _jobs([one, other], one[0].device, _BLOCK)
    flags = torch.zeros(len(one), dtype=torch.int32, device=owners.device)
    _differ[(len(owners),)](jobs, owners, flags, JOB=jobs.size(1), BLOCK=_BLOCK, num_warps=8)
    return flags.to(torch.bool)


def _jobs(columns: Sequence[Sequence[Tensor]], device: torch.device, block: int) -> tuple[Tensor, Tensor, Counts]:
    """The table of one launch. The host does not wait for the device, which may be far behind.

    Args:
        columns: tensors; those at one position are read together and have equal lengths.
        block: words of a block.

    Returns:
        jobs: [num_tensors, 3 + num_columns] int64: first block, number of words, the address in each column, number
            of blocks.
        owners: [num_blocks] int64: the tensor that a block belongs to.
        num_blocks: [num_tensors] of each tensor, at least 1.
    """
    num_words = np.array([tensor.nbytes for tensor in columns[0]]) // 8
    num_blocks = np.maximum(1, -(-num_words // block))
    addresses = [[tensor.data_ptr() for tensor in column] for column in columns]
    rows = np.stack([np.cumsum(num_blocks) - num_blocks, num_words, *addresses, num_blocks], axis=1)
    table = torch.from_numpy(rows)
    jobs = (table.pin_memory() if device.type == "cuda" else table).to(device, non_blocking=True)
    owners = torch.repeat_interleave(jobs[:, -1], output_size=int(num_blocks.sum()))
    return jobs, owners, num_blocks


@triton.jit  # type: ignore[untyped-decorator]
def _read(job, column, block, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A block of words as unsigned integers; 0 behind the end."""
    words = tl.load(job + 2 + column).to(tl.pointer_type(tl.uint64))
    place = (block - tl.load(job)) * BLOCK + tl.arange(0, BLOCK)
    return tl.load(words + place, mask=place < tl.load(job + 1), other=0)


@triton.jit  # type: ignore[untyped-decorator]
def _fold(jobs, owners, weights, sums, JOB: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    block, position = tl.program_id(0), tl.arange(0, BLOCK)
    word = _read(jobs + tl.load(owners + block) * JOB, 0, block, BLOCK)
    first, second = tl.load(weights + position), tl.load(weights + BLOCK + position)
    tl.store(sums + block, tl.sum(word.to(tl.int64) * first + (word >> 32).to(tl.int64) * second, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _differ(jobs, owners, flags, JOB: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    job = jobs + owner * JOB
    unequal = _read(job, 0, block, BLOCK) != _read(job, 1, block, BLOCK)
    if tl.max(unequal.to(tl.int32), axis=0) > 0:
        tl.store(flags + owner, 1)
