"""Which queries attend to all keys before them, and which to chosen ones.

The first `topk` queries of a sequence see at most `topk` keys, so choosing leaves none out: for these, and for whole
sequences no longer than `topk`, attention with keys and values of the heads' own is the same function as attention to
chosen latents, with less work. Anywhere else it would be another model.

Shape letters: s tokens of a rank's sequence shard, t of its context-parallel rank, T of the pack; n a rank's part of
what tensor-parallel ranks trade.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_megatron.train.model.packed.context_parallel import RowRange, slice_rows
from slime_megatron.train.model.packed.copies import on_device
from slime_megatron.transformer.attention.causal import Segments


@dataclass(frozen=True)
class Split:
    """Of the tokens of one context-parallel rank, the same for all its tensor-parallel ranks but for `own` and `runs`.

    Attributes:
        lengths: of neighbouring tokens that attend alike, in order; together t.
        is_sparse: do these attend to chosen keys?
        dense_keys: rows of the pack that the other tokens see, sequence after sequence.
        dense: lengths of these queries and keys.
        traded: by tensor-parallel rank, how many of its s tokens attend to chosen keys.
        own: [traded of this rank] int64, which of its s tokens these are.
        runs: the rows of the pack where they stand.
    """

    lengths: list[int]
    is_sparse: list[bool]
    dense_keys: Tensor
    dense: Segments
    traded: list[int]
    own: Tensor
    runs: list[RowRange]

    @classmethod
    def of(cls, runs: Sequence[RowRange], topk: int, num_shards: int, shard: int, device: torch.device) -> Split:
        """From the rows of the pack that a context-parallel rank holds, in order; each shard has an equal part."""
        parts = [part for run in runs for part in _cut(run, topk)]
        dense = [run for run, is_sparse in parts if not is_sparse]
        size = sum(run.length for run in runs) // num_shards
        shards = [slice_rows(runs, rank * size, (rank + 1) * size) for rank in range(num_shards)]
        chosen = [[part for run in mine for part in _cut(run, topk)] for mine in shards]
        keys = [run.seen() for run in dense]
        return cls(
            lengths=[run.length for run, _ in parts],
            is_sparse=[is_sparse for _, is_sparse in parts],
            dense_keys=on_device(torch.from_numpy(np.concatenate([np.empty(0, np.int64), *keys])), device),
            dense=Segments.of([run.length for run in dense], list(map(len, keys)), device),
            traded=[sum(run.length for run, is_sparse in mine if is_sparse) for mine in chosen],
            own=on_device(torch.from_numpy(_places(chosen[shard])), device),
            runs=[run for run, is_sparse in chosen[shard] if is_sparse],
        )

    def take(self, x: Tensor, *, sparse: bool) -> Tensor:
        """Of [t, ...] the tokens that attend to chosen keys, or the others; there must be some."""
        parts = torch.split(x, self.lengths)
        return _joined([part for part, is_sparse in zip(parts, self.is_sparse, strict=True) if is_sparse == sparse])

    def together(self, dense: Tensor | None, sparse: Tensor | None) -> Tensor:
        """What `take` took apart, in order: [t, ...]."""
        if dense is None or sparse is None:
            return _given(dense, sparse)
        parts = list(zip(self.lengths, self.is_sparse, strict=True))
        rest = {
            kind: iter(torch.split(x, [length for length, is_sparse in parts if is_sparse == kind]))
            for kind, x in ((False, dense), (True, sparse))
        }
        return torch.cat([next(rest[is_sparse]) for is_sparse in self.is_sparse])

    def trade(self, x: Tensor, exchange: Callable[[Tensor], Tensor]) -> Tensor:
        """Heads for tokens, of [t, h, ...] tokens that attend to chosen keys: [n, H, ...] of `own`.

        Args:
            exchange: of equal parts. The parts of ranks that have fewer such tokens end with zeros.
        """
        most = max(self.traded)
        parts = zip(torch.split(x, self.traded), self.traded, strict=True)
        return exchange(_joined([F.pad(part, (0, 0, 0, 0, 0, most - num)) for part, num in parts]))

    def trade_back(self, x: Tensor, exchange: Callable[[Tensor], Tensor]) -> Tensor:
        """[n, H, ...] -> [t, h, ...]"""
        parts = torch.split(exchange(x), max(self.traded))
        return _joined([part[:num] for part, num in zip(parts, self.traded, strict=True)])

    def filled(self, selected: Tensor) -> Tensor:
        """[own, k] chosen keys -> [n, k]: the zeros of `trade` attend to one key, and nothing reads what they get."""
        missing = max(self.traded) - len(selected)
        if not missing:
            return selected
        one = F.pad(selected.new_zeros(missing, 1), (0, selected.size(1) - 1), value=-1)
        return torch.cat([selected, one])


def _cut(run: RowRange, topk: int) -> list[tuple[RowRange, bool]]:
    """The queries that see at most `topk` keys, and (True) those that see more; what is empty is left out."""
    border = topk - run.num_before
    parts = [(run.slice(0, border), False), (run.slice(max(border, 0), run.length), True)]
    return [(part, is_sparse) for part, is_sparse in parts if part.length]


def _places(parts: Sequence[tuple[RowRange, bool]]) -> np.ndarray:
    """[..] int64: of the tokens of all parts, counted through, those of the sparse ones."""
    kinds = np.repeat([is_sparse for _, is_sparse in parts], [run.length for run, _ in parts])
    return np.flatnonzero(kinds).astype(np.int64)


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def _given(*tensors: Tensor | None) -> Tensor:
    [given] = [tensor for tensor in tensors if tensor is not None]
    return given
