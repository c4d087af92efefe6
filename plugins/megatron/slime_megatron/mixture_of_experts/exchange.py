"""Rows on their way between the ranks that share the experts, while the device computes something else."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class OnHost:
    """A small matrix of the device on its way to the host, which waits when it is read."""

    def __init__(self, values: Tensor) -> None:
        self._copy, self._columns = values.to("cpu", non_blocking=True), slice(None)
        self._arrived = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            self._arrived.record()

    def part(self, begin: int, end: int) -> OnHost:
        """Some of its columns."""
        part = copy(self)
        part._columns = slice(begin, end)
        return part

    @property
    def values(self) -> Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy[:, self._columns]


class Exchange:
    """An all-to-all that goes on beside what stands between `depart` and `arrive`, in the forward pass and, the other
    way round, in the backward pass. One object for each tensor and pass.

    Args:
        sent, received: rows to and from each rank of the group.
    """

    def __init__(self, group: dist.ProcessGroup, sent: Sequence[int], received: Sequence[int]) -> None:
        self.group, self.sent, self.received = group, list(sent), list(received)
        self._under_way: Any = None

    def depart(self, rows: Tensor) -> Tensor:
        """[rows sent, ...] -> [rows received, ...], not to be read before `arrive`."""
        arriving: Tensor = _Depart.apply(rows, self)  # type: ignore[no-untyped-call]
        return arriving

    def arrive(self, rows: Tensor) -> Tensor:
        """What `depart` returned, whole."""
        arrived: Tensor = _Arrive.apply(rows, self)  # type: ignore[no-untyped-call]
        return arrived

    def begin(self, rows: Tensor, *, back: bool) -> Tensor:
        sent, received = (self.received, self.sent) if back else (self.sent, self.received)
        arriving = rows.new_empty((sum(received), *rows.shape[1:]))
        work = dist.all_to_all_single(arriving, rows.contiguous(), received, sent, group=self.group, async_op=True)
        self._under_way = arriving, work
        return arriving

    def end(self) -> Tensor:
        """What `begin` returned, whole."""
        arrived: Tensor
        (arrived, work), self._under_way = self._under_way, None
        work.wait()
        return arrived


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.begin(rows, back=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        arrived: Tensor = ctx.exchange.end()
        return arrived, None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        exchange.end()
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """What is returned only has the shape that autograd wants: the gradient reaches `_Depart` by the exchange."""
        ctx.exchange.begin(gradient, back=True)
        return gradient, None
