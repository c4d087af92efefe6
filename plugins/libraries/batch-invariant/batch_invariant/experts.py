"""Mixtures of experts: a token's experts, their weights and what they make of it depend on no other token.

What is fixed: scores and weights in fp32, in sums of one order; of experts that tie, the first; rows of an expert in
products of one size; a token's experts summed in the order of their numbers.

Shape letters: t tokens, e experts, k experts of a token, r rows (t * k, those of the first expert before the second's),
h hidden size, f size of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from batch_invariant.products import product
from batch_invariant.rows import swiglu


class Routing(NamedTuple):
    """How a token's experts are weighed.

    Attributes:
        topk: k.
        sigmoid: scores are sigmoids of the logits, else their softmax.
        normalised: over the chosen experts.
        scale: by which weights are multiplied.
    """

    topk: int
    sigmoid: bool
    normalised: bool
    scale: float = 1.0


def choose(logits: Tensor, routing: Routing, bias: Tensor | None = None) -> Tensor:
    """[t, k] the experts with the best scores, ascending by number, of logits [t, e] in fp32. Without gradient.

    Args:
        bias: [e] fp32, added to sigmoids for the choice alone.
    """
    assert logits.dtype == torch.float32
    found = _sigmoid(logits) if routing.sigmoid else logits
    if bias is not None:
        found = found + bias
    best = found.sort(dim=1, descending=True, stable=True).indices[:, : routing.topk]
    return best.sort(dim=1).values


def weigh(logits: Tensor, experts: Tensor, routing: Routing) -> Tensor:
    """[t, k] fp32 weights of the experts [t, k], of logits [t, e] in fp32. Without gradient."""
    chosen = logits.gather(1, experts)
    if routing.sigmoid:
        parts = _sigmoid(chosen)
        total = _sum(parts) + 1e-20 if routing.normalised else None
    else:
        every = chosen if routing.normalised else logits
        peak = every.amax(dim=1, keepdim=True)
        parts, total = (chosen - peak).exp(), _sum((every - peak).exp())
    return (parts if total is None else parts / total) * routing.scale


def mixture(hidden: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """[t, h] sums of what the experts make of hidden [t, h]. Without gradient, nor a wait of the host on a GPU.

    Args:
        experts, weights: [t, k] by `choose` and `weigh`.
        gate_up, down: [e, h, 2f] and [e, f, h].
    """
    by_expert, order = experts.flatten().sort(stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    ends = torch.searchsorted(by_expert, torch.arange(len(gate_up), device=order.device), right=True)
    rows = hidden[order // experts.size(1)]
    found = expert_rows(rows, weights.flatten()[order], ends, gate_up, down)
    return sums(found, places.view(experts.shape))


def expert_rows(
    rows: Tensor, weights: Tensor, ends: Tensor, gate_up: Sequence[Tensor] | Tensor, down: Sequence[Tensor] | Tensor
) -> Tensor:
    """[r, h] of rows [r, h]: down(silu(gate) * up * weight), rounded after each product and before the second one.

    Args:
        weights: [r] fp32.
        ends: [e] where the rows of each expert end.
        gate_up, down: of each expert [h, 2f] and [f, h]; the gate comes first.
    """
    if rows.is_cuda:
        from batch_invariant import kernels

        whole = [each if isinstance(each, Tensor) else torch.stack(list(each)) for each in (gate_up, down)]
        inner = swiglu(kernels.product_by_expert(rows, whole[0], ends), weights)
        return kernels.product_by_expert(inner, whole[1], ends)
    found, begin = torch.empty_like(rows), 0
    for end, first, second in zip(ends.tolist(), gate_up, down, strict=True):
        if end > begin:
            part = slice(begin, end)
            found[part] = product(swiglu(product(rows[part], _lying(first)), weights[part]), _lying(second))
        begin = end
    return found


def sums(rows: Tensor, places: Tensor) -> Tensor:
    """[t, h] sums over the rows [r, h] at the places [t, k], one after the other in fp32, rounded once."""
    total = rows[places[:, 0]].float()
    for place in places.unbind(1)[1:]:
        total += rows[place]
    return total.to(rows.dtype)


def _lying(right: Tensor) -> Tensor:
    """As weights of linear layers lie, transposed: BLAS may add up others in another order."""
    return right.t().contiguous().t()


def _sigmoid(x: Tensor) -> Tensor:
    """Not torch's, which takes another path on a CPU for what does not fill a vector register."""
    return 1 / (1 + torch.exp(-x))


def _sum(x: Tensor) -> Tensor:
    """[t, n] -> [t, 1], by halves: reductions of a device divide rows by how many there are."""
    size = 1 << (x.size(1) - 1).bit_length()
    x = F.pad(x, (0, size - x.size(1)))
    while x.size(1) > 1:
        first, second = x.chunk(2, dim=1)
        x = first + second
    return x
