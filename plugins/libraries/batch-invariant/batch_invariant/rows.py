"""Operators on single rows. What a CPU computes of a row in plain torch operations depends on no other row, but for
sigmoids and sums of a single row: the former take another path for what does not fill a vector register.

Shape letters: t tokens, h hidden size, f features, c rows of logits, v vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_SUMMED_AT_ONCE = 1024
"""Entries of a row. Sums of whole rows would be divided among threads where there are few rows."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[..., h] -> the same shape and type (Zhang & Sennrich 2019): computed in fp32 and rounded once. On GPUs without
    gradient."""
    if x.is_cuda:
        from batch_invariant import kernels

        return kernels.rms_norm(x, weight, eps)
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def swiglu(gate_up: Tensor, weights: Tensor | None = None) -> Tensor:
    """silu(gate) * up (Shazeer 2020) of [gate | up] [..., 2f] -> [..., f], times the weight of each row [n], if given;
    in fp32 and rounded once."""
    gate, up = (half.float() for half in gate_up.chunk(2, dim=-1))
    found = gate / (1 + torch.exp(-gate)) * up
    return (found if weights is None else found * weights[:, None]).to(gate_up.dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """[t, heads, d] turned by angles in fp32 (Su et al. 2021), rounded once.

    Args:
        cos, sin: [t, r] fp32; the first 2r entries of each head turn.
        interleaved: pairs are neighbours (GPT-J), not r apart (GPT-NeoX).
    """
    num_pairs = cos.size(1)
    turning, rest = torch.split(heads, [2 * num_pairs, heads.size(-1) - 2 * num_pairs], dim=-1)
    neighbours = turning.reshape(*heads.shape[:-1], num_pairs, 2)
    x, y = neighbours.unbind(-1) if interleaved else turning.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    turned = (x * cos - y * sin, y * cos + x * sin)
    joined = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return torch.cat([joined.to(heads.dtype), rest], dim=-1)


def statistics(logits: Tensor, labels: Tensor, temperature: float | Tensor) -> Tensor:
    """[4, c] fp32 of x = logits [c, v] / temperature: maximum m, sum(exp z), sum(z exp z) with z = x - m, the label's
    x. On CPUs.

    Args:
        labels: [c]; one outside of the vocabulary counts 0.
        temperature: one of all rows, or [c].
    """
    x = logits.float() / (temperature[:, None] if isinstance(temperature, Tensor) else temperature)
    inside = (labels >= 0) & (labels < x.size(1))
    of_label = x.gather(1, labels.clamp(0, x.size(1) - 1)[:, None].long())[:, 0] * inside
    peak = x.amax(dim=1)
    z = x - peak[:, None]
    exponentials = z.exp()
    return torch.stack([peak, _sum(exponentials), _sum(exponentials * z), of_label])


def _sum(rows: Tensor) -> Tensor:
    parts = F.pad(rows, (0, -rows.size(1) % _SUMMED_AT_ONCE)).view(len(rows), -1, _SUMMED_AT_ONCE)
    found: Tensor = parts.sum(dim=2).sum(dim=1)
    return found


def logprob(found: Tensor) -> Tensor:
    """[c] log-probs of the labels, of their `statistics` [4, c]."""
    peak, total, _, of_label = found.unbind()
    return of_label - peak - total.log()
