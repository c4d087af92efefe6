"""Plans of what a loader did with each bucket of a version, by which the next version does without the loader.

SGLang's loader finds every tensor's place by its name, in Python: for a mixture of experts it goes through all experts
for each of tens of thousands of tensors. Every version brings the same tensors in the same buckets to the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch

from slime_sglang.engine.coverage import Intervals
from slime_sglang.engine.writes import Memory, Write
from weight_buckets.bucket import Header
from weight_buckets.views import BlockView, copy_all, views

Contents = Sequence[tuple[str, BlockView]]
"""Of a bucket: its tensors by name."""
Partial = dict[str, tuple[int, list[list[int]]]]
"""Of tensors that one rank did not use as a whole: size in bytes and the byte ranges it used; JSON-able."""


@dataclass(frozen=True)
class ReceivedBucket:
    """A bucket on an engine's side.

    Attributes:
        memory: [num_bytes] uint8.
        tensors: views of the memory.
    """

    memory: torch.Tensor
    contents: Contents

    @classmethod
    def of(cls, memory: torch.Tensor, header: Header) -> Self:
        return cls(memory, list(zip(header.names, header.places, strict=True)))

    @property
    def for_sglang(self) -> dict[str, Any]:
        """As its own loading of a flattened bucket takes it: `FlattenedTensorMetadata`, field by field."""
        metadata = [
            SimpleNamespace(
                name=name,
                shape=place.shape,
                dtype=place.dtype,
                start_idx=place.start,
                end_idx=place.end,
                numel=place.end - place.start,
            )
            for name, place in self.contents
        ]
        return {"flattened_tensor": self.memory, "metadata": metadata}

    @cached_property
    def tensors(self) -> Sequence[tuple[str, torch.Tensor]]:
        names, places = zip(*self.contents, strict=True)
        return list(zip(names, views(self.memory, places), strict=True))


@dataclass(frozen=True)
class Copy:
    """What a loader copied from a bucket into a parameter.

    Attributes:
        complaint: what to say should the two differ.
    """

    target: torch.Tensor
    source: BlockView
    complaint: str


@dataclass(frozen=True)
class LoadPlan:
    """What a loader did with one bucket.

    Attributes:
        fills: of the padding of parameters, with a constant.
        written: bytes of each parameter that were written.
        writers: by parameter, the tensors it was written from.
        partial: of the bucket's tensors.
    """

    contents: Contents
    copies: Sequence[Copy]
    fills: Sequence[Write]
    written: Mapping[str, Intervals]
    writers: Mapping[str, Sequence[str]]
    partial: Partial

    def sources(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Of the copies, in a bucket's memory."""
        return views(memory, [copy.source for copy in self.copies])

    def replay(self, sources: Sequence[torch.Tensor]) -> None:
        """Do the same with other contents."""
        copy_all([copy.target for copy in self.copies], sources)
        with torch.no_grad():
            for fill in self.fills:
                fill.target.fill_(fill.value)

    @property
    def can_be_replayed(self) -> bool:
        """The order of its writes does not matter, and weights keep their kind. E4M3 in blocks is copied as it is: what
        a loader of other quantised ones does besides is not known."""
        num_covered = sum(int(np.diff(intervals).sum()) for intervals in self.written.values())
        targets = [copy.target for copy in self.copies] + [fill.target for fill in self.fills]
        plain = all(target.dtype in _PLAIN for target in targets)
        return plain and num_covered == sum(target.nbytes for target in targets)


_PLAIN = {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn}


class LoadPlans:
    """The plans of all buckets of a version, in their order, which write `parameters`; none if every version needs the
    engine's loader."""

    def __init__(self, parameters: Memory, by_bucket: Sequence[LoadPlan]) -> None:
        self._places = _places(parameters)
        self.by_bucket = by_bucket if all(plan.can_be_replayed for plan in by_bucket) else []

    def fit(self, parameters: Memory) -> bool:
        """The parameters still lie where they did."""
        return self._places == _places(parameters)

    def find(self, index: int, contents: Contents) -> LoadPlan | None:
        """The plan of a bucket, if it holds what it held."""
        found = self.by_bucket[index] if index < len(self.by_bucket) else None
        return found if found and found.contents == contents else None


def _places(parameters: Memory) -> list[tuple[str, int, int]]:
    return [(region.name, region.address, region.end) for region in parameters.regions]
