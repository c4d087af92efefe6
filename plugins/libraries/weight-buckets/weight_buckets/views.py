"""Many tensors in one block of memory: their places, and copying them all at once."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Self

import torch

Named = tuple[str, torch.Tensor]
Form = tuple[Sequence[int], torch.dtype]
"""Shape and dtype of a tensor."""
_ALIGN = 64  # bytes: any dtype can be viewed in place, and digests read whole words


class BlockView(NamedTuple):
    """The place of a tensor in a block: `start` in bytes, a multiple of the element's size; strides in elements."""

    start: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor, block: torch.Tensor) -> Self:
        return cls(tensor.data_ptr() - block.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)

    @classmethod
    def dense(cls, start: int, shape: Sequence[int], dtype: torch.dtype) -> Self:
        """The place of a tensor in one piece."""
        size = torch.Size(shape)
        return cls(start, size, _dense_strides(size), dtype)

    @property
    def end(self) -> int:
        """The end, in bytes, of a tensor in one piece."""
        return self.start + self.shape.numel() * self.dtype.itemsize


@functools.lru_cache(maxsize=1024)
def _dense_strides(shape: torch.Size) -> tuple[int, ...]:
    strides = list(accumulate(reversed(shape[1:]), operator.mul, initial=1))
    return tuple(strides[: len(shape)][::-1])


def aligned(num_bytes: int) -> int:
    """The next place where a tensor may start."""
    return -(-num_bytes // _ALIGN) * _ALIGN


def packed(forms: Iterable[Form]) -> list[BlockView]:
    """Places for tensors one after the other."""
    places: list[BlockView] = []
    end = 0
    for shape, dtype in forms:
        places.append(place := BlockView.dense(aligned(end), shape, dtype))
        end = place.end
    return places


def views(block: torch.Tensor, places: Sequence[BlockView]) -> list[torch.Tensor]:
    """The tensors at these places of `block` ([num_bytes] uint8)."""
    dtypes = {place.dtype for place in places}
    typed = {dtype: block[: len(block) // dtype.itemsize * dtype.itemsize].view(dtype) for dtype in dtypes}
    starts = [typed[place.dtype].storage_offset() + place.start // place.dtype.itemsize for place in places]
    both = zip(places, starts, strict=True)
    return [typed[place.dtype].as_strided(place.shape, place.strides, start) for place, start in both]


@torch.no_grad()
def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target of the same shape; those in one piece on both sides in one launch a dtype.
    Targets do not overlap."""
    dense: dict[tuple[torch.dtype, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]]
    dense = defaultdict(lambda: ([], []))
    for target, source in zip(targets, sources, strict=True):
        if target.dtype == source.dtype == torch.float8_e4m3fn:  # of which torch copies many at once only as bytes
            target, source = target.view(torch.uint8), source.view(torch.uint8)
        if target.is_contiguous() and source.is_contiguous():
            these, those = dense[target.dtype, source.dtype]
            these.append(target)
            those.append(source)
        else:
            target.copy_(source)
    for these, those in dense.values():
        torch._foreach_copy_(these, those)
