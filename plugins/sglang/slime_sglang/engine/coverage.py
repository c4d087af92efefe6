"""Which bytes of a block of memory have been read or written, exactly, whatever the strides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

Intervals = np.ndarray
"""int64 [num_intervals, 2]: half-open byte ranges, sorted, disjoint."""


@dataclass
class Coverage:
    """The union of byte ranges of a block of `num_bytes` bytes."""

    num_bytes: int
    _pieces: list[Intervals] = field(default_factory=list)
    _whole: bool = False

    def add_view(self, view: torch.Tensor, base: int) -> None:
        """Cover what `view`, a part of the block, touches; `base` is the address of the block's first byte."""
        self.add(byte_runs(view, base))

    def add(self, intervals: Intervals) -> None:
        if len(intervals) == 1 and intervals[0, 1] - intervals[0, 0] == self.num_bytes:
            self._whole = True  # most are: no arithmetic
        else:
            self._pieces.append(intervals)

    def covered(self) -> Intervals:
        if self._whole:
            return np.array([[0, self.num_bytes]], dtype=np.int64)
        pieces = np.concatenate([np.empty((0, 2), dtype=np.int64), *self._pieces])
        self._pieces = [_merge(pieces) if len(pieces) else pieces]
        return self._pieces[0]

    def missing(self) -> Intervals:
        """The ranges that nothing covers yet; empty when the block is whole."""
        if self._whole:
            return np.empty((0, 2), dtype=np.int64)
        covered = self.covered()
        gaps = np.empty((len(covered) + 1, 2), dtype=np.int64)
        gaps[0, 0], gaps[1:, 0] = 0, covered[:, 1]
        gaps[:-1, 1], gaps[-1, 1] = covered[:, 0], self.num_bytes
        return gaps[gaps[:, 0] < gaps[:, 1]]


def byte_runs(view: torch.Tensor, base: int) -> Intervals:
    """The contiguous byte ranges behind a strided view, relative to address `base`."""
    if view.is_contiguous():
        start = view.data_ptr() - base
        return np.array([[start, start + view.nbytes]], dtype=np.int64)
    run = view.element_size()
    starts = np.array([view.data_ptr() - base], dtype=np.int64)
    dims = sorted((stride * view.element_size(), size) for size, stride in zip(view.shape, view.stride(), strict=True))
    for stride, size in dims:
        if size == 1 or stride == 0:
            continue
        if stride == run and len(starts) == 1:
            run *= size
        else:
            starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return np.column_stack([starts, starts + run])


def _merge(intervals: Intervals) -> Intervals:
    """Sort; join what overlaps or touches."""
    if len(intervals) == 1:
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    first = np.ones(len(intervals) + 1, dtype=bool)
    np.greater(intervals[1:, 0], reach[:-1], out=first[1:-1])
    return np.column_stack([intervals[first[:-1], 0], reach[first[1:]]])
