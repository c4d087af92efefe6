"""Buckets: many tensors in one contiguous block of memory, handed to the engines at once."""

from __future__ import annotations

import functools
import os
import pickle
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self, TypeVar

import torch

from weight_buckets.receipt import NOTE_KEY, BucketNote
from weight_buckets.views import BlockView, Named, copy_all, packed, views

_DOWN_PROJECTIONS = re.compile(r"(.+)\.(?:q_a_proj|kv_a_proj_with_mqa)\.")
"""Matrices of latent attention, whose weight mapping exports one straight after the other."""
_PARTS = re.compile(r"(.+\.weight)_\w+")
"""Companions of a quantised matrix, its scales for instance."""
T = TypeVar("T")


def loaded_together(items: Iterable[T], name: Callable[[T], str]) -> Iterator[list[T]]:
    """The items in runs that must come to SGLang's loaders in one call, which fuse some tensors into one parameter, and
    derive another of some. `name` is that of an item's first tensor."""
    return (list(run) for _, run in groupby(items, key=lambda item: _parameter(name(item))))


def _parameter(name: str) -> str:
    found = _DOWN_PROJECTIONS.match(name) or _PARTS.fullmatch(name)
    return found[1] if found else name


def in_buckets(runs: Iterable[list[T]], capacity: int, num_bytes: Callable[[list[T]], int]) -> Iterator[list[T]]:
    """Items that travel together: runs of up to `capacity` bytes, or one larger run."""
    held: list[T] = []
    used = 0
    for run in runs:
        needed = num_bytes(run)
        if held and used + needed > capacity:
            yield held
            held, used = [], 0
        held += run
        used += needed
    if held:
        yield held


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Header:
    """The tensors of a bucket, from which their places follow. Made of JSON's own types."""

    names: Sequence[str]
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str]

    @classmethod
    def of(cls, tensors: Sequence[Named]) -> Self:
        names, values = [name for name, _ in tensors], [tensor for _, tensor in tensors]
        return cls(names, [tuple(value.shape) for value in values], [_name_of(value.dtype) for value in values])

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def places(self) -> list[BlockView]:
        return packed(zip(self.shapes, [getattr(torch, dtype) for dtype in self.dtypes], strict=True))


class Bucket:
    """Tensors in device memory, [capacity] uint8."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.device = device
        self.header, self.places = Header([], [], []), list[BlockView]()
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)  # gone before its successor comes
        self.memory = torch.empty(capacity, dtype=torch.uint8, device=self.device)

    @property
    def used(self) -> int:
        return self.places[-1].end if self.places else 0

    def reserve(self, header: Header) -> None:
        """Make room for these tensors and nothing else; only one that goes alone may need more memory than there is."""
        self.header, self.places = header, header.places
        if self.used > len(self.memory):
            self._grow(self.used)

    def fill(self, tensors: Sequence[Named]) -> None:
        """Hold copies of `tensors` and nothing else."""
        self.reserve(Header.of(tensors))
        copy_all(views(self.memory, self.places), [tensor for _, tensor in tensors])

    def payload(self, note: BucketNote) -> bytes:
        """The pickle for `/update_weights_from_tensor`, `load_format=flattened_bucket`: names and a handle. It has
        plain types and torch's own functions alone: SGLang's unpickler admits no others."""
        told = {"flattened_tensor": self._handle(), "header": self.header.to_dict(), NOTE_KEY: note.to_dict()}
        told["metadata"] = []  # all that an engine without slime reads: it loads nothing, and answers without a receipt
        return pickle.dumps(told)

    def _handle(self) -> _Rebuilt:
        """An object that pickles as the memory itself, for a process that shares it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        del self.memory


class SharedBucket(Bucket):
    """Tensors in an anonymous memory file (memfd) of this host, for engines on cpu, which map `/proc/<pid>/fd/<fd>`. No
    limit of a container's /dev/shm holds for it, and the kernel frees it when publisher and engines are gone or
    done."""

    def __init__(self, capacity: int, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008
        self._descriptor = os.memfd_create("slime-bucket")
        self._close = weakref.finalize(self, os.close, self._descriptor)
        super().__init__(capacity, device)

    def _grow(self, capacity: int) -> None:
        os.ftruncate(self._descriptor, capacity)
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._map = functools.partial(torch.from_file, path, shared=True, size=capacity, dtype=torch.uint8)
        self.memory = self._map()

    def _handle(self) -> _Rebuilt:
        return _Rebuilt(self._map)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._close()


class CudaBucket(Bucket):
    """Tensors in the memory of a GPU that publisher and engine share: the engine opens it by its CUDA IPC handle."""

    def _handle(self) -> _Rebuilt:
        from torch.multiprocessing import reductions

        torch.cuda.current_stream(self.device).synchronize()
        rebuild, arguments = reductions.reduce_tensor(self.memory)  # type: ignore[no-untyped-call]
        # The device is named by its UUID: the numbers of publisher and engine need not be the same. SGLang
        # (utils/patch_torch.py) rebinds `rebuild_cuda_tensor` in its processes so that it takes one.
        named = list(arguments)
        named[_DEVICE] = str(torch.cuda.get_device_properties(self.device).uuid)
        return _Rebuilt(functools.partial(rebuild, *named))

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # frees what the engine has let go of


_DEVICE = 6
"""Position of the device among the arguments of torch's `rebuild_cuda_tensor`."""


class _Rebuilt:
    """Unpickles as the tensor that `function` makes in the receiver."""

    def __init__(self, function: Callable[[], torch.Tensor]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, ()
