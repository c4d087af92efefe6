"""The forward pass of a model that learns, by these operators; its backward pass is the ordinary one.

Gradients of the operators that a model would have without are as good: values differ by rounding alone. So a value
takes the place of the ordinary one, whose gradient stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from batch_invariant.products import product, product_and_sum

_is_on: ContextVar[bool] = ContextVar("batch_invariant", default=False)
_OURS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.mm.default: product,
    torch.ops.aten.addmm.default: product_and_sum,
}


def is_on() -> bool:
    """Whether this is inside of `forward_pass`."""
    return _is_on.get()


@contextmanager
def forward_pass(wanted: bool = True) -> Iterator[None]:
    """Inside, products of matrices are `batch_invariant.products.product`, and `is_on`; outside, as in a backward pass,
    they are torch's. Nothing changes unless `wanted`."""
    if not wanted:
        yield
        return
    token = _is_on.set(True)
    try:
        with _Products():  # type: ignore[no-untyped-call]
            yield
    finally:
        _is_on.reset(token)


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten.mm.dtype, f"{func} has no batch-invariant form"
        return _OURS.get(func, func)(*args, **(kwargs or {}))


def instead(ordinary: Callable[..., Tensor], ours: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """What `ours` makes of the inputs, with the gradient of what `ordinary` makes of them. Without a gradient to come,
    `ordinary` is not asked."""
    with torch.no_grad():
        value = ours(*inputs)
    if not torch.is_grad_enabled():
        return value
    result: Tensor = _Value.apply(ordinary(*inputs), value)  # type: ignore[no-untyped-call]
    return result


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ordinary: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
