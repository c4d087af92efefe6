"""A scoped context in which a CPU stands in for CUDA, so that unmodified Megatron-core runs over gloo.

Megatron-core asks `torch.cuda` for the current device and streams, creates tensors with a literal `device="cuda"`,
and compares `Tensor.type()` with strings such as `torch.cuda.FloatTensor`. Inside the context these answer for the
CPU; on exit everything is as before. Where CUDA is available the context does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _Stream:
    """A CUDA stream or event of a device that does everything in order: nothing to wait for."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: object = None) -> object:
        return event or self

    def query(self) -> bool:
        return True


_STREAM = _Stream()

_CUDA_ATTRIBUTES: dict[str, Any] = {
    "current_device": lambda: _CPU,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "current_stream": lambda device=None: _STREAM,
    "default_stream": lambda device=None: _STREAM,
    "stream": lambda stream: nullcontext(),
    "Stream": _Stream,
    "Event": _Stream,
}


def _names_cuda(device: object) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


class _CudaLiteralsMeanCpu(TorchFunctionMode):
    """Rewrites `device="cuda"`, `pin_memory=True`, `Tensor.cuda()`, `Tensor.to("cuda")` and `Tensor.type()`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return args[0].type().replace("torch.", "torch.cuda.", 1)
        if func is torch.Tensor.to and len(args) > 1 and _names_cuda(args[1]):
            args = (args[0], _CPU, *args[2:])
        return func(*args, **_on_cpu(kwargs or {}))


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    if _names_cuda(kwargs.get("device")):
        kwargs = kwargs | {"device": _CPU}
    if kwargs.get("pin_memory"):
        kwargs = kwargs | {"pin_memory": False}
    return kwargs


@contextmanager
def cpu_stands_in_for_cuda() -> Iterator[None]:
    """Enter around everything that calls Megatron-core; a no-op where CUDA is available."""
    if torch.cuda.is_available():
        yield
        return
    with mock.patch.multiple(torch.cuda, **_CUDA_ATTRIBUTES), _CudaLiteralsMeanCpu():
        yield
