"""Causal attention inside each of several sequences that lie behind one another, by the best kernel of a device.

Shape letters: h query heads, g key-value heads, d query/key head size, e value head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Segments:
    """The sequences of a pack. The queries of each are the last tokens of its keys (bottom-right mask).

    Attributes:
        query_lengths, key_lengths: by sequence, on the host.
        query_borders, key_borders: int32 [num_sequences + 1] on the device.
    """

    query_lengths: Sequence[int]
    key_lengths: Sequence[int]
    query_borders: Tensor
    key_borders: Tensor

    @classmethod
    def of(cls, query_lengths: Sequence[int], key_lengths: Sequence[int], device: torch.device) -> Segments:
        """From the lengths alone; copies them to the device."""
        return cls(query_lengths, key_lengths, _borders(query_lengths, device), _borders(key_lengths, device))


Attend = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]
"""(query, key, value, segments, scale) -> [sum of query_lengths, h, e], of query [sum of query_lengths, h, d],
key [sum of key_lengths, g, d] and value [sum of key_lengths, g, e]."""


def causal_attention(device: torch.device, dtype: torch.dtype) -> Attend:
    """The best form for a device and precision: torch's flash attention knows no fp32 and no CPU."""
    return _flash() if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) else by_sequence


def by_sequence(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """`Attend` with one call of `scaled_dot_product_attention` for each run of equal lengths."""
    lengths = zip(segments.query_lengths, segments.key_lengths, strict=True)
    runs = [(pair, len(list(same))) for pair, same in groupby(lengths)]
    # Split, not sliced: the backward of a slice fills a tensor as large as the whole pack.
    queries = torch.split(query, [count * length for (length, _), count in runs])
    key_sizes = [count * length for (_, length), count in runs]
    keys, values = torch.split(key, key_sizes), torch.split(value, key_sizes)
    counts = [count for _, count in runs]
    blocks = zip(queries, keys, values, counts, strict=True)
    return torch.cat([_equal_lengths(*block, scale) for block in blocks])


def _equal_lengths(query: Tensor, key: Tensor, value: Tensor, count: int, scale: float) -> Tensor:
    """`count` sequences of one length lie behind one another: a view makes them a batch, nothing is copied."""
    q, k, v = (x.reshape(count, -1, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
    q_length, k_length = q.size(2), k.size(2)
    mask = None
    if q_length != k_length:
        mask = torch.ones(q_length, k_length, dtype=torch.bool, device=q.device).tril(k_length - q_length)
    grouped = q.size(1) != k.size(1)
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(0, 1)


def _flash() -> Attend:
    """torch's variable-length flash attention; the kernel shares key-value heads among queries by itself.

    Up to torch 2.11 that needs no word, later it is to be allowed.
    """
    from torch.nn.attention.varlen import varlen_attn

    allowed: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}

    def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
        value_size = value.size(-1)
        out = varlen_attn(
            query,
            key,
            F.pad(value, (0, query.size(-1) - value_size)) if value_size != query.size(-1) else value,
            segments.query_borders,
            segments.key_borders,
            max(segments.query_lengths),
            max(segments.key_lengths),
            scale=scale,
            window_size=(-1, 0),
            **allowed,
        )
        assert isinstance(out, Tensor), "only return_aux makes it a tuple"
        return out[..., :value_size]

    return attend


def _borders(lengths: Sequence[int], device: torch.device) -> Tensor:
    return F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0)).to(device)
