"""Many tensors in one block of memory: where they lie, and copying them all at once."""

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
    """A tensor in a block of memory, whichever block that is.

    Attributes:
        start: of its first element, in bytes from the block's begin; a multiple of the element's size.
        strides: in elements.
    """

    start: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor, block: torch.Tensor) -> Self:
        """Of a tensor that lies in `block`."""
        return cls(tensor.data_ptr() - block.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)

    @classmethod
    def dense(cls, start: int, shape: Sequence[int], dtype: torch.dtype) -> Self:
        """Of a tensor in one piece."""
        size = torch.Size(shape)
        return cls(start, size, _dense_strides(size), dtype)

    @property
    def end(self) -> int:
        """Of a tensor in one piece."""
        return self.start + self.shape.numel() * self.dtype.itemsize


@functools.lru_cache(maxsize=1024)
def _dense_strides(shape: torch.Size) -> tuple[int, ...]:
    strides = list(accumulate(reversed(shape[1:]), operator.mul, initial=1))
    return tuple(strides[: len(shape)][::-1])


def aligned(num_bytes: int) -> int:
    """Where the next tensor of a block may start."""
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
    typed: dict[torch.dtype, torch.Tensor] = {}
    for dtype in {place.dtype for place in places}:
        size = dtype.itemsize
        typed[dtype] = block[: len(block) // size * size].view(dtype)
    return [
        typed[place.dtype].as_strided(
            place.shape, place.strides, typed[place.dtype].storage_offset() + place.start // place.dtype.itemsize
        )
        for place in places
    ]


@torch.no_grad()
def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target; what lies in one piece on both sides in one launch a dtype.

    Args:
        targets: of the shapes of the sources; they do not overlap.
    """
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
