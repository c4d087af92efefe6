"""Causal attention inside each of several contiguous sequences, by the best kernel of a device.

Shape letters: h query heads, g key-value heads, d query/key head size, e value head size.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
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

from batch_invariant.attention import attention
from slime_megatron.train.model.packed.copies import on_device

LONG = 4096
"""Tokens of one sequence, or of a batch of equal ones, from which on cuDNN's attention is the faster one on an H200
(`benchmarks/attention.py`)."""

SHORT = 1024
"""Tokens of a sequence below which flash attention is as good: such are not batched."""

_STEP, _LONG_STEP = 256, 512
"""Sequences are padded to multiples: cuDNN plans again, 0.1 s, and keeps the plan for good, for every length and every
number of sequences. The number is a power of two for the same reason."""


@dataclass(frozen=True)
class Call:
    """Sequences that one call of a kernel serves.

    Attributes:
        sequences: numbers of them, in the order of the pack.
        length: to which those for cuDNN are padded, so that they make a batch; 0: sequences of any lengths.
        segments: of sequences of any lengths.
    """

    sequences: tuple[int, ...]
    length: int = 0
    segments: Segments | None = None


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
    def calls(self) -> list[Call]:
        """Batches for cuDNN of whole sequences, `LONG` ones each by itself; then, if there are more, all others.

        Only equal ones make a batch: to pad and to copy those of mixed lengths cost more than the batch won
        (`benchmarks/results/attention-h100.md`).
        """
        alike = defaultdict[int, list[int]](list)
        for number, pair in enumerate(zip(self.query_lengths, self.key_lengths, strict=True)):
            if pair[0] == pair[1] >= SHORT:
                alike[pair[0]].append(number)
        padded = [(_padded(length), numbers) for length, numbers in alike.items()]
        batches = [Call(tuple(part), length) for length, numbers in padded for part in _batches(numbers, length)]
        batched = {number for batch in batches for number in batch.sequences}
        others = tuple(number for number in range(len(self.query_lengths)) if number not in batched)
        if not batched:
            return [Call(others, segments=self)]
        if not others:
            return batches
        queries, keys = ([each[number] for number in others] for each in (self.query_lengths, self.key_lengths))
        return [*batches, Call(others, segments=Segments.of(queries, keys, self.query_borders.device))]


def _padded(length: int) -> int:
    step = _LONG_STEP if length >= LONG else _STEP
    return -(-length // step) * step


def _batches(numbers: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Parts, powers of two, of sequences padded to `length`: each of at least `LONG` tokens in all. A rest may stay."""
    start, least = 0, -(-LONG // length)
    while (left := len(numbers) - start) >= least:
        count = 1 if least == 1 else 1 << left.bit_length() - 1
        if count < least:
            return
        yield numbers[start : start + count]
        start += count


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


def invariant(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """`Attend` in which the other queries and keys of a pack move no bit of a query's result. No gradient."""
    index = torch.arange(len(key), device=key.device)
    borders = segments.query_borders, segments.key_borders
    return attention(query, key, value, index, *borders, max(segments.query_lengths), scale)


def _parts(
    query: Tensor, key: Tensor, value: Tensor, sizes: Iterable[tuple[int, int]]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Consecutive parts of the three tensors. `sizes`: of each part, the number of its queries and of its keys."""
    query_sizes, key_sizes = map(list, zip(*sizes, strict=True))
    return zip(_split(query, query_sizes), _split(key, key_sizes), _split(value, key_sizes), strict=True)


def _split(tensor: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Split, not sliced: the backward of a slice fills a tensor as large as the whole pack. That of a split copies, so
    one part is no split."""
    return torch.split(tensor, list(sizes)) if len(sizes) > 1 else [tensor]


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
    """cuDNN's attention for long sequences and for batches of equal ones, if it knows heads of these sizes on this
    device; flash attention for the others."""
    attend_others = flash()

    def attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
        if not segments.calls[0].length or not cudnn_knows(query, key, value):
            return attend_others(query, key, value, segments, scale)
        return in_calls(query, key, value, segments, scale, cudnn, attend_others)

    return attend


Batch = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(query, key, value, scale) -> [n, length, h, e], of n whole sequences: query [n, length, h, d], key [n, length, g, d]
and value [n, length, g, e]. Causal."""


def in_calls(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float, batch: Batch, attend: Attend
) -> Tensor:
    """`Attend` by `segments.calls`: `batch` for those that are batches, `attend` for the others.

    Padding comes last in a sequence, where no query but its own sees it. Neighbours of the length of their batch are a
    view of the pack; others are copied.
    """
    runs = _runs(segments)
    sizes = [(_total(segments.query_lengths, run), _total(segments.key_lengths, run)) for run in runs]
    parts = {run[0]: part for run, part in zip(runs, _parts(query, key, value, sizes), strict=True)}
    found: dict[int, Tensor] = {}
    for call in segments.calls:
        mine = [run for run in runs if run[0] in call.sequences]
        inputs = [[parts[run[0]][place] for run in mine] for place in range(3)]
        if call.segments is not None:
            q, k, v = map(_joined, inputs)
            outputs = list(_split(attend(q, k, v, call.segments, scale), [len(part) for part in inputs[0]]))
        else:
            lengths = [segments.query_lengths[run[0]] for run in mine]
            q, k, v = (_as_batch(tensors, lengths, call.length) for tensors in inputs)
            batches = _split(batch(q, k, v, scale), [len(run) for run in mine])
            outputs = [_cut(each, length).flatten(0, 1) for each, length in zip(batches, lengths, strict=True)]
        found |= {run[0]: part for run, part in zip(mine, outputs, strict=True)}
    return _joined([found[run[0]] for run in runs])


def _total(lengths: Sequence[int], run: Sequence[int]) -> int:
    return sum(lengths[number] for number in run)


def _runs(segments: Segments) -> list[list[int]]:
    """Neighbouring sequences that one call serves, those of a batch where they are of equal lengths."""
    of_call = {number: call for call in segments.calls for number in call.sequences}

    def alike(number: int) -> tuple[int, int]:
        call = of_call[number]
        return call.sequences[0], 0 if call.segments is not None else segments.query_lengths[number]

    return [list(run) for _, run in groupby(range(len(segments.query_lengths)), alike)]


def _as_batch(parts: Sequence[Tensor], lengths: Sequence[int], padded: int) -> Tensor:
    """Of [n * length, ...] each, with lengths of their own: [all sequences, padded, ...]"""
    sequences = (x.view(-1, length, *x.shape[1:]) for x, length in zip(parts, lengths, strict=True))
    return _joined([F.pad(x, (0, 0, 0, 0, 0, padded - x.size(1))) if padded > x.size(1) else x for x in sequences])


def _cut(sequences: Tensor, length: int) -> Tensor:
    """[n, padded, ...] -> [n, length, ...]"""
    return sequences[:, :length] if sequences.size(1) > length else sequences


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]


def cudnn_knows(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `cudnn` can be asked: it depends on the device, the precision and the heads' number and sizes.

    It is asked about as many queries as keys, which a batch of whole sequences has, if not the pack.
    """
    length = min(len(query), len(key))
    q, k, v = (x[:length].transpose(0, 1)[None] for x in (query, key, value))
    return can_use_cudnn_attention(SDPAParams(q, k, v, None, 0.0, True, q.size(1) != k.size(1)))


def cudnn(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """`Batch` by cuDNN."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.size(1) != k.size(1))
    return out.transpose(1, 2)


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
    return on_device(F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0)), device)
