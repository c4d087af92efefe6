"""Deltas between two buckets of equal layout, in few bytes and exact to the bit.

Words of bits are compared, never numbers, so that -0.0 and each NaN keep theirs. A delta has of every word that changed
its distance from the one before, and the difference of the two integers modulo 2^bits: after a small step most weights
in bf16 are what they were, and the others are mostly the next number up or down. Both are cut into planes of bytes and
compressed by zstd (`benchmarks/delta.py` compares with other ways).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PIECE = 2**23
"""Bytes that one thread compares at a time."""
_HEAD = struct.Struct("<IBQ")
"""Of a piece: how many words changed, bytes of a distance, bytes of what follows."""
Piece = tuple[int, int, memoryview]
"""The same three, the last one itself."""
_CODEC, _LEVEL = "zstd", 1
_NUM_THREADS = 16


def encode(now: Bytes, before: Bytes, word: int) -> bytes | None:
    """The delta by which `apply` makes `now` of `before`; None if it would be no smaller than `now`.

    Args:
        now: [num_bytes] uint8, as `before`.
        word: bytes that are compared at a time (1, 2, 4, 8): an element's. Any that divides `num_bytes` is exact.
    """
    assert len(now) == len(before), "buckets of equal layout"
    pieces = _on_all_cores(lambda at: _encode(now[at], before[at], word), len(now))
    return b"".join(pieces) if sum(map(len, pieces)) < len(now) else None


def apply(delta: memoryview, target: Bytes, word: int) -> None:
    """Make what `encode` got as `before` its `now`, in place.

    Raises:
        ValueError: it is no delta of as many bytes. Part of `target` may be changed by then.
    """
    pieces = _split(delta)
    if len(pieces) != -(-len(target) // _PIECE):
        raise ValueError(f"a delta of {len(pieces)} pieces does not fit {len(target)} bytes")
    _on_all_cores(lambda at: _apply(pieces[at.start // _PIECE], target[at], word), len(target))


def _on_all_cores(function: Callable[[slice], Any], num_bytes: int) -> list[Any]:
    """numpy and zstd let other threads run."""
    places = [slice(start, min(start + _PIECE, num_bytes)) for start in range(0, num_bytes, _PIECE)]
    with ThreadPoolExecutor(min(_NUM_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, places))


def _encode(now: Bytes, before: Bytes, word: int) -> bytes:
    new, old = now.view(f"u{word}"), before.view(f"u{word}")
    (positions,) = np.nonzero(new != old)
    distances = np.diff(positions, prepend=-1) - 1
    width = np.min_scalar_type(distances.max(initial=0)).itemsize
    planes = _planes(distances.astype(f"u{width}")), _planes(new[positions] - old[positions])
    packed = pa.Codec(_CODEC, _LEVEL).compress(b"".join(planes), asbytes=True)
    return b"".join((_HEAD.pack(len(positions), width, len(packed)), packed))


def _split(delta: memoryview) -> list[Piece]:
    pieces, start = [], 0
    while start < len(delta):
        if start + _HEAD.size > len(delta):
            raise ValueError("the delta ends in the middle of a piece")
        count, width, size = _HEAD.unpack_from(delta, start)
        start += _HEAD.size
        pieces.append((count, width, delta[start : start + size]))
        start += size
    if start != len(delta):
        raise ValueError("the delta ends in the middle of a piece")
    return pieces


def _apply(piece: Piece, target: Bytes, word: int) -> None:
    (count, width, packed), words = piece, target.view(f"u{word}")
    if count > len(words) or width not in (1, 2, 4, 8):
        raise ValueError(f"{count} changes do not fit {len(words)} words")
    try:
        plain = pa.Codec(_CODEC).decompress(packed, decompressed_size=count * (width + word))
    except OSError as error:
        raise ValueError(f"a piece cannot be unpacked: {error}") from error
    planes = np.frombuffer(plain, np.uint8)
    if len(planes) != count * (width + word):
        raise ValueError(f"a piece of {count} changes has {len(planes)} bytes")
    positions = np.cumsum(_whole(planes[: count * width], width).astype(np.int64) + 1) - 1
    if count and positions[-1] >= len(words):
        raise ValueError(f"word {positions[-1]} of {len(words)} is changed")
    words[positions] += _whole(planes[count * width :], word)


def _planes(values: np.ndarray[Any, Any]) -> bytes:
    """The first byte of all values, then the second, ...: of small numbers those behind the first are all 0."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(len(values), values.itemsize).T).tobytes()


def _whole(planes: Bytes, width: int) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(planes.reshape(width, -1).T).view(f"u{width}").reshape(-1)
