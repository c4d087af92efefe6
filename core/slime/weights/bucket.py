"""A bucket of tensors in memory that engines on the same host can map: the transport of CPU runs."""

from __future__ import annotations

import functools
import os
import pickle
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from slime.weights.receipt import NOTE_KEY, BucketNote

_ALIGN = 64  # bytes: any dtype can be viewed in place, and digests read whole words


class SharedBucket:
    """Tensors behind one another in an anonymous memory file (memfd).

    An engine maps it through `/proc/<pid>/fd/<fd>`. Unlike a file in /dev/shm the memory needs no size limit raised
    in containers, and the kernel frees it when publisher and engines have let go of it, killed or not.
    """

    def __init__(self, capacity: int) -> None:
        self._descriptor = os.memfd_create("slime-bucket")
        self.metadata: list[SimpleNamespace] = []
        self._capacity = self._used = 0
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        os.ftruncate(self._descriptor, capacity)
        self._capacity = capacity
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        self._map = functools.partial(torch.from_file, path, shared=True, size=capacity, dtype=torch.uint8)
        self.memory = self._map()

    def has_room(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` still fits; an empty bucket takes a tensor of any size."""
        return not self.metadata or self._used + tensor.nbytes <= self._capacity

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Copy `tensor` in, behind what is there."""
        end = self._used + tensor.nbytes
        if end > self._capacity:
            self._grow(end)
        self.memory[self._used : end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self.metadata.append(
            SimpleNamespace(
                name=name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                start_idx=self._used,
                end_idx=end,
                numel=tensor.nbytes,
            )
        )
        self._used = -(-end // _ALIGN) * _ALIGN

    def clear(self) -> None:
        self.metadata, self._used = [], 0

    def payload(self, note: BucketNote) -> bytes:
        """The pickle for `/update_weights_from_tensor`, `load_format=flattened_bucket`: names and a handle, no data.

        Only plain types and torch's own functions: SGLang's unpickler admits no others.
        """
        bucket = {
            "flattened_tensor": _Mapped(self._map),
            "metadata": self.metadata,
            NOTE_KEY: note.to_dict(),
        }
        return pickle.dumps(bucket)

    def __enter__(self) -> SharedBucket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self.memory
        os.close(self._descriptor)


class _Mapped:
    """Unpickles as the mapped tensor: the receiver calls `torch.from_file` itself."""

    def __init__(self, map_file: functools.partial[torch.Tensor]) -> None:
        self._map = map_file

    def __reduce__(self) -> tuple[Any, ...]:
        return self._map, ()
