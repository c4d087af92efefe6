"""Attention in packs where sequences share the tokens that they begin with, whose rows stand there once.

What a model computes of a prompt does not depend on the response, nor that of a turn on what follows it: all that
linears, norms and attention do for it is done once for the sequences that begin with it, and their gradients come
together in it. Exact, but for rounding. The sequences are the branches of a trie: a sequence reads the keys of its
ancestors, which are parts of several earlier ones, and its own.

Shape letters: t tokens, h query heads, g key-value heads, d query/key head size, e value head size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_megatron.train.model.packed.copies import on_device
from slime_megatron.train.model.packed.sequences import PackedSequences, Prefix
from slime_megatron.transformer.attention.causal import Attend, Segments, by_sequence

Rows = np.ndarray
"""int64, rows of a pack."""


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar lengths, padded to the longest of them: one call of attention.

    Attributes:
        queries, keys: rows of the pack [sequences, longest]; padding is row 0.
        mask: fp32 [sequences, 1, queries, keys], 0 where a query sees a key, else -inf.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor


class SharedPrompts:
    """Of one pack, which one rank holds whole; lengths: of each sequence, in rows of its own."""

    def __init__(self, lengths: Sequence[int], prefixes: Sequence[Prefix], device: torch.device) -> None:
        self.lengths, self.prefixes, self.device = lengths, prefixes, device

    @classmethod
    def of(cls, packed: PackedSequences) -> SharedPrompts:
        """From a pack that has prefixes."""
        assert packed.prefixes is not None
        return cls(packed.lengths, packed.prefixes, packed.cu_seqlens_q.device)

    def attend(self, attend: Attend, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [t, h, d], key [t, g, d], value [t, g, e] -> [t, h, e], by a kernel for sequences of any lengths or,
        where there is none, by calls for several of similar lengths."""
        if attend is by_sequence:
            return self._by_buckets(query, key, value, scale)
        index, segments = self._gathered
        return attend(query, key.index_select(0, index), value.index_select(0, index), segments, scale)

    def _by_buckets(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        buckets, order = self._buckets
        grouped, found = query.size(1) != key.size(1), []
        for bucket in buckets:
            q, k, v = (
                heads.index_select(0, rows.flatten()).view(*rows.shape, *heads.shape[1:]).transpose(1, 2)
                for heads, rows in ((query, bucket.queries), (key, bucket.keys), (value, bucket.keys))
            )
            mask = bucket.mask.to(query.dtype)
            out = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
            found.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(found).index_select(0, order)

    @cached_property
    def _rows(self) -> list[tuple[Rows, Rows]]:
        """Of each sequence, the rows of its queries and of its keys."""
        rows, start = [], 0
        for length, before in zip(self.lengths, self.prefixes, strict=True):
            own = np.arange(start, start + length)
            rows.append((own, np.concatenate([*(np.arange(part.start, part.stop) for part in before), own])))
            start += length
        return rows

    @cached_property
    def _gathered(self) -> tuple[Tensor, Segments]:
        """The rows of all keys, sequence after sequence, and their lengths."""
        keys = [keys for _, keys in self._rows]
        segments = Segments.of(self.lengths, [len(rows) for rows in keys], self.device)
        return self._tensor(np.concatenate(keys)), segments

    @cached_property
    def _buckets(self) -> tuple[list[Bucket], Tensor]:
        """The calls, and where in all that they return, padding included, each token finds its own."""
        alike = defaultdict[tuple[int, int], list[tuple[Rows, Rows]]](list)
        for queries, keys in self._rows:
            alike[len(queries).bit_length(), len(keys).bit_length()].append((queries, keys))
        order, buckets, returned = np.empty(sum(self.lengths), np.int64), [], 0
        for rows in alike.values():
            padded = _padded([queries for queries, _ in rows])
            for place, (queries, _) in enumerate(rows):
                order[queries] = np.arange(len(queries)) + returned + place * padded.shape[1]
            returned += padded.size
            keys, mask = _padded([keys for _, keys in rows]), _mask(rows)
            buckets.append(Bucket(*map(self._tensor, (padded, keys, mask))))
        return buckets, self._tensor(order)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return on_device(torch.from_numpy(values), self.device)


def _padded(rows: Sequence[Rows]) -> Rows:
    """[sequences, longest]"""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for line, found in zip(padded, rows, strict=True):
        line[: len(found)] = found
    return padded


def _mask(rows: Sequence[tuple[Rows, Rows]]) -> np.ndarray:
    """See `Bucket`. A query of the padding sees what the last one does: what sees nothing would be NaN."""
    num_queries, num_keys = np.array([[len(queries), len(keys)] for queries, keys in rows]).T[..., None]
    place = np.minimum(np.arange(num_queries.max()), num_queries - 1) + num_keys - num_queries
    is_seen = np.arange(num_keys.max()) <= place[..., None]
    return np.where(is_seen, np.float32(0), np.float32(-np.inf))[:, None]
