"""Tokens copied to a row for each of their experts, and rows summed to tokens again, both by gathering: no atomic
additions, so the same sums in every run.

Shape letters: n tokens, k experts of a token, e experts, r rows (n * k), h hidden size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Order(NamedTuple):
    """Which rows belong to which tokens: the two tables are each other's inverse.

    Attributes:
        tokens: [r] whose row it is.
        rows: [n, k] of each token.
    """

    tokens: Tensor
    rows: Tensor

    @classmethod
    def by_expert(cls, experts: Tensor) -> Order:
        """Rows of the first expert before those of the second, and in each the tokens in turn; every expert of a token
        counts as one here.

        Args:
            experts: [n, k]. Two bytes hold them: GPUs sort by digits, and so need a pass for each byte.
        """
        places = experts.flatten().short().argsort(stable=True)
        return cls(places, _inverse(places)[:, None])

    def of_tokens(self, topk: int) -> Order:
        """With `topk` experts, one after the other, as one token."""
        return Order(self.tokens // topk, self.rows.view(-1, topk))

    @classmethod
    def of_chunks(cls, counts: Tensor, num_rows: int) -> Order:
        """Rows that arrive by rank and then by expert, to those by expert and then by rank.

        Args:
            counts: [ranks, experts] rows.
            num_rows: their sum, which the host knows already.
        """
        ends = counts.flatten().cumsum(0)
        begins = (ends.view(counts.shape) - counts).t().flatten()
        sizes = counts.t().flatten()
        shifts = begins - (sizes.cumsum(0) - sizes)
        places = shifts.repeat_interleave(sizes, output_size=num_rows)
        places = places + torch.arange(num_rows, device=counts.device)
        return cls(places, _inverse(places)[:, None])


def _inverse(places: Tensor) -> Tensor:
    return torch.empty_like(places).scatter_(0, places, torch.arange(len(places), device=places.device))


def chosen(routing_map: Tensor, topk: int) -> Tensor:
    """[n, e] bool, `topk` of them True in every row -> [n, topk] their numbers, ascending; the host does not wait."""
    num_experts = routing_map.size(1)
    ranks = torch.arange(num_experts, 0, -1, dtype=torch.int32, device=routing_map.device)
    return num_experts - (routing_map * ranks).topk(topk, dim=1).values.long()


def spread(tokens: Tensor, order: Order) -> Tensor:
    """[n, h] -> [r, h]."""
    rows: Tensor = _Spread.apply(tokens, order)  # type: ignore[no-untyped-call]
    return rows


def collect(rows: Tensor, order: Order) -> Tensor:
    """[r, h] -> [n, h] sums over the rows of each token; sums of bf16 are rounded once."""
    tokens: Tensor = _Collect.apply(rows, order)  # type: ignore[no-untyped-call]
    return tokens


def _sums(rows: Tensor, order: Order) -> Tensor:
    topk = order.rows.size(1)
    if rows.is_cuda and topk > 1 and rows.dim() > 1:
        from slime_megatron.mixture_of_experts.kernels import sums_of_rows

        return sums_of_rows(rows, order.rows)
    of_tokens = rows.index_select(0, order.rows.flatten())
    return of_tokens if topk == 1 else of_tokens.view(-1, topk, *rows.shape[1:]).sum(dim=1)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return tokens.index_select(0, order.tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sums(gradient, ctx.order), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Order) -> Tensor:
        ctx.order = order
        return _sums(rows, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.index_select(0, ctx.order.tokens), None
