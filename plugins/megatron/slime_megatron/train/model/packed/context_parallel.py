"""Which rows of a pack each context-parallel rank holds. No torch.

Both ways cut every sequence by itself, so that all ranks hold equal parts of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class RowRange:
    """`length` consecutive rows of a pack, from row `first` on, of the sequence whose own rows begin at row `start`.

    Attributes:
        before: the rows of the tokens before its own, which it shares with earlier ones, in the order of the tokens.
    """

    start: int
    first: int
    length: int
    before: tuple[range, ...] = ()

    @property
    def num_shared(self) -> int:
        """Tokens of the sequence before its own rows."""
        return sum(map(len, self.before))

    @property
    def num_before(self) -> int:
        """Tokens of the sequence before these."""
        return self.num_shared + self.first - self.start

    @property
    def num_seen(self) -> int:
        """Tokens of the sequence up to the last of these."""
        return self.num_before + self.length

    def seen(self) -> np.ndarray:
        """[num_seen] int64: the rows where they stand."""
        return np.concatenate([np.arange(rows.start, rows.stop) for rows in self.seen_ranges()])

    def seen_ranges(self) -> list[range]:
        """The same, as ranges."""
        return [*self.before, range(self.start, self.first + self.length)]

    def slice(self, begin: int, end: int) -> RowRange:
        """The rows `begin` to `end` of the run, cut to what it has; its length may be 0."""
        begin, end = max(begin, 0), min(end, self.length)
        return replace(self, first=self.first + begin, length=max(0, end - begin))


def runs_of_rank(
    cu_seqlens: Sequence[int] | np.ndarray,
    cp_size: int,
    cp_rank: int,
    *,
    contiguous: bool = False,
    prefixes: Sequence[tuple[range, ...]] | None = None,
) -> list[RowRange]:
    """The rows of rank `cp_rank`, in the order in which it holds them.

    Args:
        cu_seqlens: padded sequence borders [num_sequences + 1].
        contiguous: chunk r of each sequence cut into n. Otherwise zig-zag, chunks r and 2n-1-r of each sequence cut
            into 2n: the early and the late chunk together cost every rank the same causal attention.
        prefixes: of each sequence, the rows that it shares with earlier ones (`RowRange.before`), on one rank alone.
    """
    num_chunks = cp_size if contiguous or cp_size == 1 else 2 * cp_size
    mine = [cp_rank] if num_chunks == cp_size else [cp_rank, 2 * cp_size - 1 - cp_rank]
    borders = [(int(start), (int(end) - int(start)) // num_chunks) for start, end in pairwise(cu_seqlens)]
    every = zip(borders, prefixes or [()] * len(borders), strict=True)
    return [
        RowRange(start, start + chunk * length, length, before) for (start, length), before in every for chunk in mine
    ]


def row_index(runs: Sequence[RowRange]) -> np.ndarray:
    """[t] int64: the rows of all runs, run after run."""
    return np.concatenate([np.arange(run.first, run.first + run.length) for run in runs])


def slice_rows(runs: Sequence[RowRange], begin: int, end: int) -> list[RowRange]:
    """The runs of the tokens `begin` to `end` of a rank, such as sequence parallelism gives one of its ranks."""
    parts, offset = [], 0
    for run in runs:
        part = run.slice(begin - offset, end - offset)
        if part.length:
            parts.append(part)
        offset += run.length
    return parts
