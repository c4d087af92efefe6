"""Causal attention inside each of several contiguous sequences, by the best kernel of a device.

Shape letters: h query heads, g key-value heads, d query/key head size, e value head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

LONG = 4096
"""Tokens of a sequence from which on cuDNN's attention is the faster one on an H200 (`benchmarks/attention.py`)."""

_LONG_STEP = 512
"""Long sequences are padded to multiples: cuDNN plans again, and keeps the plan for good, for every length."""


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

    @cached_property
    def runs(self) -> list[tuple[bool, Segments]]:
        """Neighbours that one kernel serves: whole sequences of `LONG` tokens and more (True), and others."""
        pairs = zip(self.query_lengths, self.key_lengths, strict=True)
        runs = [(is_long, list(run)) for is_long, run in groupby(pairs, lambda pair: pair[0] == pair[1] >= LONG)]
        if len(runs) == 1:
            return [(runs[0][0], self)]
        device = self.query_borders.device
        return [(is_long, Segments.of([q for q, _ in run], [k for _, k in run], device)) for is_long, run in runs]


Attend = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]
"""(query, key, value, segments, scale) -> [sum of query_lengths, h, e], of query [sum of query_lengths, h, d],
key [sum of key_lengths, g, d] and value [sum of key_lengths, g, e]."""


def causal_attention(device: torch.device, dtype: torch.dtype, window: int | None = None) -> Attend:
    """The best form for a device and precision: torch's flash attention knows no fp32 and no CPU.

    Args:
        window: keys that a query sees, its own the last of them; None: all up to its own.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return by_sequence if window is None else partial(by_sequence, window=window)
    return _on_cuda() if window is None else flash(window)  # cuDNN's attention is asked for no windows


def by_sequence(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float, *, window: int | None = None
) -> Tensor:
    """`Attend` with one call of `scaled_dot_product_attention` for each run of equal lengths."""
    lengths = zip(segments.query_lengths, segments.key_lengths, strict=True)
    runs = [(pair, len(list(same))) for pair, same in groupby(lengths)]
    sizes = [(count * queries, count * keys) for (queries, keys), count in runs]
    blocks = zip(_parts(query, key, value, sizes), runs, strict=True)
    return torch.cat([_equal_lengths(*qkv, count, scale, window) for qkv, (_, count) in blocks])


def _parts(
    query: Tensor, key: Tensor, value: Tensor, sizes: Iterable[tuple[int, int]]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Neighbouring parts of so many queries and so many keys.

    Split, not sliced: the backward of a slice fills a tensor as large as the whole pack.
    """
    query_sizes, key_sizes = map(list, zip(*sizes, strict=True))
    keys, values = torch.split(key, key_sizes), torch.split(value, key_sizes)
    return zip(torch.split(query, query_sizes), keys, values, strict=True)


def _equal_lengths(query: Tensor, key: Tensor, value: Tensor, count: int, scale: float, window: int | None) -> Tensor:
    """`count` sequences of one length are contiguous: a view makes them a batch, nothing is copied."""
    q, k, v = (x.reshape(count, -1, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
    q_length, k_length = q.size(2), k.size(2)
    mask, newest = None, k_length - q_length
    if newest or (window and window < k_length):
        mask = torch.ones(q_length, k_length, dtype=torch.bool, device=q.device).tril(newest)
        mask = mask.triu(newest - window + 1) if window else mask
    grouped = q.size(1) != k.size(1)
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(0, 1)


def _on_cuda() -> Attend:
    """Flash attention; cuDNN's for long sequences, if it knows heads of these sizes on this device."""
    attend_short = flash()

    def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
        runs = segments.runs
        if not any(is_long for is_long, _ in runs) or not cudnn_knows(query, key, value):
            return attend_short(query, key, value, segments, scale)
        if len(runs) == 1:
            return cudnn(query, key, value, segments, scale)
        sizes = [(sum(run.query_lengths), sum(run.key_lengths)) for _, run in runs]
        blocks = zip(_parts(query, key, value, sizes), runs, strict=True)
        return torch.cat([(cudnn if is_long else attend_short)(*qkv, run, scale) for qkv, (is_long, run) in blocks])

    return attend


def cudnn_knows(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `cudnn` can be asked: it depends on the device, the precision and the heads' number and sizes."""
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    return can_use_cudnn_attention(SDPAParams(q, k, v, None, 0.0, True, q.size(1) != k.size(1)))


def cudnn(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """`Attend` by cuDNN, one whole sequence after the other. Padding comes last: no query sees it."""
    parts = []
    grouped = query.size(1) != key.size(1)
    lengths = zip(segments.query_lengths, segments.key_lengths, strict=True)
    for qkv in _parts(query, key, value, lengths):
        length = len(qkv[0])
        padding = -length % _LONG_STEP
        q, k, v = ((F.pad(x, (0, 0, 0, 0, 0, padding)) if padding else x).transpose(0, 1)[None] for x in qkv)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        parts.append(out[0, :, :length].transpose(0, 1))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def flash(window: int | None = None) -> Attend:
    """torch's variable-length flash attention; the kernel shares key-value heads among queries by itself.

    torch 2.12 and newer want this sharing to be allowed by an argument.
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
            window_size=(window - 1 if window else -1, 0),
            **allowed,
        )
        assert isinstance(out, Tensor), "only return_aux makes it a tuple"
        return out[..., :value_size]

    return attend


def _borders(lengths: Sequence[int], device: torch.device) -> Tensor:
    return F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0)).to(device)
