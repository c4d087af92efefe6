"""Sums over the sequences of a micro-batch, with gradient, also where context parallelism cuts these."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor
from torch.autograd.function import once_differentiable


def sum_by_sequence(values: Tensor, lengths: Tensor) -> Tensor:
    """[t] the sum over the sequence of each token, the parts that other context-parallel ranks hold included.

    Collective over context-parallel ranks, the backward pass too.

    Args:
        values: [t] of this rank, whose sequences are contiguous.
        lengths: [num_sequences] int64 on the CPU, tokens that this rank holds of each.
    """
    total: Tensor = _SumBySequence.apply(values, lengths)  # type: ignore[no-untyped-call]
    return total


class _SumBySequence(torch.autograd.Function):
    """A linear map that is its own transpose: each output is the sum of the same inputs as its neighbours'."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(lengths)
        return _sum(values, lengths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        (lengths,) = ctx.saved_tensors
        return _sum(gradients, lengths), None


def _sum(values: Tensor, lengths: Tensor) -> Tensor:
    lengths = lengths.to(values.device, non_blocking=True)
    sums = torch.segment_reduce(values.contiguous(), "sum", lengths=lengths, unsafe=True, initial=0)
    if parallel_state.get_context_parallel_world_size() > 1:
        torch.distributed.all_reduce(sums, group=parallel_state.get_context_parallel_group())
    return sums.repeat_interleave(lengths, output_size=len(values))
