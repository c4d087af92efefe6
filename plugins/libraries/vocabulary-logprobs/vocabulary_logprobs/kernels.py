"""Softmax statistics of rows of logits in one pass, and the gradient of logits written over them in another.

Shape letters: c rows (tokens), v vocabulary entries of this rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096
_NUM_WARPS = 8


def statistics(logits: Tensor, local_labels: Tensor, temperature: float | Tensor) -> Tensor:
    """[4, c] fp32, see `PlainKernels.statistics`. logits: [c, v], contiguous; temperature: of all rows, or fp32 [c]."""
    assert logits.is_contiguous(), "rows are contiguous"
    if not isinstance(temperature, Tensor):
        temperature = torch.full((1,), temperature, dtype=torch.float32, device=logits.device).expand(len(logits))
    out = torch.empty(4, len(logits), dtype=torch.float32, device=logits.device)
    sizes = {"BLOCK": _BLOCK, "num_warps": _NUM_WARPS}
    _statistics[(len(logits),)](logits, local_labels, out, temperature, temperature.stride(0), *logits.shape, **sizes)
    return out


def to_gradient(
    logits: Tensor,
    local_labels: Tensor,
    log_z: Tensor,
    entropy: Tensor,
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """Overwrite logits [c, v] with their gradient, see `PlainKernels.to_gradient`."""
    assert logits.is_contiguous(), "rows are contiguous"
    grid = (len(logits), triton.cdiv(logits.size(1), _BLOCK))
    _to_gradient[grid](
        logits,
        local_labels,
        log_z,
        entropy,
        grad_logprob,
        grad_logprob if grad_entropy is None else grad_entropy,
        float(temperature),
        logits.size(1),
        WITH_ENTROPY=grad_entropy is not None,
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
    )
    return logits


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(  # type: ignore[no-untyped-def]
    logits, labels, out, temperatures, of_row, num_rows, num_columns, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row * of_row)
    line = logits + row * num_columns
    peak = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    weighted = tl.full((), 0.0, tl.float32)
    for start in range(0, num_columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(line + column, mask=column < num_columns, other=-float("inf")).to(tl.float32) / temperature
        higher = tl.maximum(peak, tl.max(x, axis=0))
        # What was summed against the old peak, moved to the new one; before the first block there is nothing to move.
        shift = tl.where(peak == -float("inf"), 0.0, peak - higher)
        scale = tl.exp(shift)
        z = x - higher
        exponential = tl.exp(z)
        weighted = (weighted + shift * total) * scale + tl.sum(tl.where(exponential > 0, z * exponential, 0.0), axis=0)
        total = total * scale + tl.sum(exponential, axis=0)
        peak = higher
    label = tl.load(labels + row)
    is_local = (label >= 0) & (label < num_columns)
    tl.store(out + row, peak)
    tl.store(out + num_rows + row, total)
    tl.store(out + 2 * num_rows + row, weighted)
    of_label = tl.load(line + label, mask=is_local, other=0.0).to(tl.float32) / temperature
    tl.store(out + 3 * num_rows + row, of_label)


@triton.jit  # type: ignore[untyped-decorator]
def _to_gradient(  # type: ignore[no-untyped-def]
    logits,
    labels,
    log_z,
    entropy,
    grad_logprob,
    grad_entropy,
    temperature,
    num_columns,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_columns
    place = logits + row * num_columns + column
    log_p = tl.load(place, mask=inside, other=0.0).to(tl.float32) / temperature - tl.load(log_z + row)
    factor = tl.load(grad_logprob + row)
    gradient = tl.where(column == tl.load(labels + row), factor, 0.0)
    if WITH_ENTROPY:
        factor += tl.load(grad_entropy + row) * (log_p + tl.load(entropy + row))
    tl.store(place, (gradient - factor * tl.exp(log_p)) / temperature, mask=inside)
