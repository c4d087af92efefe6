"""Causal attention in which a query's sums have one order: key after key from the first, in blocks of one size.

What a query sees is neither moved by how many queries a call has, nor by keys behind its own, nor by where keys lie: a
sequence that is computed at once, in parts behind a cached prefix, or token by token, has the same bits.

Shape letters: t queries, h heads, g key-value heads, d head size, e value size, n keys of all sequences, s sequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

ROWS, KEYS = 16, 64
"""Queries and keys of each product that a CPU makes."""
MOST_TILES = 512
"""Of queries that are computed at once, each with keys of its own."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    query_borders: Tensor,
    key_borders: Tensor,
    most_queries: int,
    scale: float,
    out: Tensor | None = None,
) -> Tensor:
    """[t, h, e]. The queries of a sequence are the last tokens of its keys. Without gradient.

    Args:
        query: [t, h, d], one sequence after the other.
        key, value: [slots, g, d] and [slots, g, e].
        index: [n] slots of the keys of one sequence after the other.
        query_borders, key_borders: [s + 1], of the sequences among `query` and `index`.
        most_queries: of a sequence.
        out: where the result goes.
    """
    if out is None:
        out = query.new_empty(*query.shape[:2], value.size(-1))
    if query.is_cuda:
        from batch_invariant import kernels

        kernels.attention(query, key, value, index, query_borders, key_borders, most_queries, scale, out)
        return out
    for tokens, keys, visible in _batches(query_borders.tolist(), key_borders.tolist(), query.size(1) // key.size(1)):
        slots = index[keys]
        found = _attend(query[tokens], key[slots], value[slots], visible, scale)
        own = visible > 0
        out[tokens[own]] = found[own]
    return out


def _batches(query_borders: Sequence[int], key_borders: Sequence[int], share: int) -> Iterator[tuple[Tensor, ...]]:
    """Sequences of similar lengths together: their tokens [b, q], their keys [b, KEYS * blocks] and of each query how
    many keys it sees, 0 for padding [b, q]. What is there for padding is the sequence's own."""
    alike = defaultdict[tuple[int, int], list[tuple[range, range]]](list)
    for queries, keys in zip(pairwise(query_borders), pairwise(key_borders), strict=True):
        if queries[1] > queries[0]:
            lengths = -(-(queries[1] - queries[0]) * share // ROWS), -(-(keys[1] - keys[0]) // KEYS)
            alike[lengths].append((range(*queries), range(*keys)))
    for (tiles, blocks), sequences in alike.items():
        most = max(1, MOST_TILES // tiles)
        for start in range(0, len(sequences), most):
            part = sequences[start : start + most]
            longest = max(len(queries) for queries, _ in part)
            place = torch.arange(longest)
            first, count = (torch.tensor(x)[:, None] for x in zip(*((q.start, len(q)) for q, _ in part), strict=True))
            begin, total = (torch.tensor(x)[:, None] for x in zip(*((k.start, len(k)) for _, k in part), strict=True))
            visible = (place + total - count + 1).where(place < count, 0)
            yield (
                first + place.minimum(count - 1),
                begin + torch.arange(blocks * KEYS).minimum(total - 1),
                visible,
            )


def _attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float) -> Tensor:
    """[b, q, h, e] of query [b, q, h, d], key [b, k, g, d], value [b, k, g, e] and `visible` [b, q]; k is a multiple of
    `KEYS`. In fp32 (float64 of float64), rounded once. Blocks that no query of a tile sees are left out: they would
    change no bit."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    (size, num_queries, heads, width), groups = query.shape, key.size(2)
    share = heads // groups
    rows = query.view(size, num_queries, groups, share, width).transpose(1, 2).reshape(size, groups, -1, width)
    seen = visible.clamp(min=1).repeat_interleave(share, dim=1)[:, None].expand(-1, groups, -1)
    padding = -rows.size(2) % ROWS
    tiles = torch.nn.functional.pad(rows.to(dtype), (0, 0, 0, padding)).view(size * groups, -1, ROWS, width)
    seen = torch.nn.functional.pad(seen, (0, padding), value=1).reshape(size * groups, -1, ROWS)
    keys, values = (x.to(dtype).transpose(1, 2).reshape(size * groups, -1, KEYS, x.size(-1)) for x in (key, value))
    parts = [
        _tiles(part, keys, values, of_part, scale)
        for part, of_part in zip(
            torch.split(tiles, MOST_TILES, dim=1), torch.split(seen, MOST_TILES, dim=1), strict=True
        )
    ]
    found = torch.cat(parts, dim=1).view(size, groups, -1, value.size(-1))[:, :, : num_queries * share]
    of_heads = found.reshape(size, groups, num_queries, share, -1).transpose(1, 2)
    return of_heads.reshape(size, num_queries, heads, -1).to(query.dtype)


def _tiles(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float) -> Tensor:
    """[b, tiles, ROWS, e] of query [b, tiles, ROWS, d], key [b, blocks, KEYS, d] and value; seen: [b, tiles, ROWS]."""
    peak = query.new_full((*query.shape[:3], 1), -torch.inf)
    total, mean = torch.zeros_like(peak), query.new_zeros(*query.shape[:3], value.size(-1))
    farthest, place = seen.amax(dim=(0, 2)).tolist(), torch.arange(KEYS)
    for number in range(key.size(1)):
        first = next((tile for tile, most in enumerate(farthest) if most > number * KEYS), None)
        if first is None:
            break
        now = slice(first, None)
        scores = _products(query[:, now], key[:, number].transpose(1, 2)) * scale
        scores = scores.masked_fill(place + number * KEYS >= seen[:, now, :, None], -torch.inf)
        higher = peak[:, now].maximum(scores.amax(dim=-1, keepdim=True))
        weights, fade = (scores - higher).exp(), (peak[:, now] - higher).exp()
        total[:, now] = total[:, now] * fade + weights.sum(dim=-1, keepdim=True)
        mean[:, now] = mean[:, now] * fade + _products(weights, value[:, number])
        peak[:, now] = higher
    return mean / total


def _products(tiles: Tensor, right: Tensor) -> Tensor:
    """[b, tiles, ROWS, i] x [b, i, j] -> [b, tiles, ROWS, j], a product of `ROWS` rows for every tile."""
    others = right[:, None].expand(-1, tiles.size(1), -1, -1).reshape(-1, *right.shape[1:])
    # As `bmm`, which other modules replace where they want batch invariance.
    nothing = tiles.new_zeros(1, 1, 1)
    return torch.baddbmm(nothing, tiles.reshape(-1, *tiles.shape[2:]), others, beta=0).view(*tiles.shape[:3], -1)
