"""Watching a loader at work: which memory it wrote, from where, and whether the bytes are the same."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weight_buckets.receipt import is_words


@dataclass(frozen=True)
class Write:
    """One in-place write into a view, from the tensor `source`, or where that is None of the constant `value`."""

    target: torch.Tensor
    source: torch.Tensor | None
    value: Any = None


@dataclass(frozen=True)
class Joined:
    """The result of `torch.cat(parts, dim)`, kept alive so that nobody else gets its id."""

    result: torch.Tensor
    parts: Sequence[torch.Tensor]
    dim: int

    def writes(self, target: torch.Tensor) -> list[Write]:
        """What `target.copy_(result)` wrote, part by part."""
        targets = torch.split(target, [part.shape[self.dim] for part in self.parts], self.dim)
        return [Write(*pair) for pair in zip(targets, self.parts, strict=True)]


@contextlib.contextmanager
def observed_writes() -> Iterator[list[Write]]:
    """Note every in-place write of the whole process while the block runs. What is copied from the result of a
    `torch.cat` counts as copied from its parts: SGLang fuses some projections so.

    The methods are replaced on the class: a TorchFunctionMode is local to a thread, and SGLang's loaders may copy from
    a thread pool. Torch inherits the three from its C base class, so deleting restores them.
    """
    writes: list[Write] = []
    joined: dict[int, Joined] = {}
    copy, fill, set_item, cat = torch.Tensor.copy_, torch.Tensor.fill_, torch.Tensor.__setitem__, torch.cat

    def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        result = copy(self, source, non_blocking)
        writes.extend(joined[id(source)].writes(self) if id(source) in joined else [Write(self, source)])
        return result

    def fill_(self: torch.Tensor, value: Any) -> torch.Tensor:
        result: torch.Tensor = fill(self, value)
        writes.append(Write(self, None, value))
        return result

    def setitem(self: torch.Tensor, index: Any, value: Any) -> None:
        set_item(self, index, value)
        writes.append(Write(self[index], value) if isinstance(value, torch.Tensor) else Write(self[index], None, value))

    def cat_(tensors: list[torch.Tensor], dim: int = 0, **kwargs: Any) -> torch.Tensor:
        result = cat(tensors, dim, **kwargs)
        joined[id(result)] = Joined(result, tensors, dim)
        return result

    torch.Tensor.copy_, torch.Tensor.fill_, torch.Tensor.__setitem__ = copy_, fill_, setitem  # type: ignore
    torch.cat = cat_  # type: ignore[assignment]
    try:
        yield writes
    finally:
        torch.cat = cat
        del torch.Tensor.copy_, torch.Tensor.fill_, torch.Tensor.__setitem__


@dataclass(frozen=True)
class Region:
    """A named tensor and the address of its memory."""

    name: str
    tensor: torch.Tensor
    address: int

    @property
    def end(self) -> int:
        return self.address + self.tensor.nbytes


class Memory:
    """Finds the named tensor in whose memory another tensor lies (dense tensors that do not overlap)."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        regions = (Region(name, tensor, tensor.data_ptr()) for name, tensor in named)
        self.regions = sorted(regions, key=lambda region: region.address)
        self._addresses = [region.address for region in self.regions]

    def find(self, tensor: torch.Tensor) -> Region | None:
        address = tensor.data_ptr()
        position = bisect.bisect_right(self._addresses, address) - 1
        if position < 0:
            return None
        region = self.regions[position]
        return region if address < region.end and tensor.device == region.tensor.device else None


def differences(copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """[num_copies] boolean: `differs` of each (target, source), of at least one; on CUDA in one launch where it can."""
    plain = [index for index, copy in enumerate(copies) if copy[0].is_cuda and _is_plain(*copy)]
    found: dict[int, torch.Tensor] = {}
    if plain:
        from weight_buckets import kernels

        launched = kernels.differ(*zip(*(copies[index] for index in plain), strict=True))
        if len(plain) == len(copies):
            return launched
        found = dict(zip(plain, launched.unbind(), strict=True))
    return torch.stack([found[index] if index in found else differs(*copy) for index, copy in enumerate(copies)])


def _is_plain(target: torch.Tensor, source: torch.Tensor) -> bool:
    same = target.dtype == source.dtype and target.shape == source.shape
    return same and is_words(target) and is_words(source)


def differs(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Boolean scalar, still on its device: `target` does not hold the bits of `source`. Where the loader converted the
    dtype, the value must survive the way back: widening passes, rounding does not."""
    back = target.to(source.dtype)
    source = source.expand(target.shape)
    wide = is_words(back) and is_words(source)
    return (_bits(back, wide) != _bits(source, wide)).any()


def _bits(tensor: torch.Tensor, wide: bool) -> torch.Tensor:
    """The same memory as integers: compared by bits, NaN equals itself and -0 is not 0."""
    if wide:
        return tensor.view(-1).view(torch.int64)
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
