"""What publisher and engine agree on: content digests of tensors, and the note that travels with each bucket.

The digest is a multilinear hash modulo 2^64 (Carter and Wegman 1979, with the fixed odd multipliers of SplitMix64),
folded as a tree. It depends on every bit and on the order, gives the same number on CPU and GPU, and runs at memory
speed: it guards against loss and mix-up, not against an adversary.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

_BLOCK = 4096  # words that one step of the tree folds into two
_CHUNK = {"cpu": 1 << 15, "cuda": 1 << 23}  # words at once: in the cache of a core; 64 MiB of GPU scratch memory
_MASK = (1 << 64) - 1

NOTE_KEY = "slime_receipt"
"""Key of the note in a bucket, and of the engine's answer in the message it returns."""


@dataclass(frozen=True)
class BucketNote:
    """What a bucket says of itself.

    Attributes:
        version: the weight version this bucket belongs to.
        index: position among the version's buckets, from 0.
        last: no bucket of this version follows.
        digests: one per tensor, in the order of the bucket's metadata.
    """

    version: int
    index: int
    last: bool
    digests: list[int]

    def to_dict(self) -> dict[str, Any]:
        """Plain values: SGLang's unpickler admits no class of ours."""
        return asdict(self)


class Fingerprint:
    """Running digest of all tensors of one version, names, shapes, dtypes and order included."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self.num_tensors = 0
        self.num_bytes = 0

    def add(self, name: str, tensor: torch.Tensor, digest: int) -> None:
        self._hash.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|{digest:016x}\n".encode())
        self.num_tensors += 1
        self.num_bytes += tensor.nbytes

    def summary(self) -> dict[str, Any]:
        """The numbers in which both sides must agree."""
        return {"tensors": self.num_tensors, "bytes": self.num_bytes, "fingerprint": self._hash.hexdigest()}


def tensor_digest(tensor: torch.Tensor) -> int:
    """64-bit digest of the bytes of `tensor` (any shape and dtype, read in C order)."""
    return tensor_digests([tensor])[0]


def tensor_digests(tensors: Iterable[torch.Tensor]) -> list[int]:
    """`tensor_digest` of each; waits for their device once."""
    tensors = list(tensors)
    return finish_digests([start_digest(tensor) for tensor in tensors], [tensor.nbytes for tensor in tensors])


def start_digest(tensor: torch.Tensor) -> torch.Tensor:
    """[2] int64 on the tensor's device: what `finish_digests` makes the digest of."""
    words, level = _fold(_words(tensor.detach().contiguous().reshape(-1).view(torch.uint8)), 0), 1
    while len(words) > 2:
        words, level = _fold(words, level), level + 1
    return words


def finish_digests(started: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[int]:
    """The digests of tensors of `sizes` bytes, from `start_digest` of each."""
    halves = torch.stack(list(started)).tolist() if started else []
    return [
        (lower + upper * _MULTIPLIER + _splitmix(size)) & _MASK
        for (lower, upper), size in zip(halves, sizes, strict=True)
    ]


def _words(data: torch.Tensor) -> torch.Tensor:
    """The bytes as int64 words, zero-padded; without a copy where length and alignment allow."""
    if len(data) % 8:
        return torch.nn.functional.pad(data, (0, -len(data) % 8)).view(torch.int64)
    if data.storage_offset() % 8:
        data = data.clone()
    return data.view(torch.int64)


def _fold(words: torch.Tensor, level: int) -> torch.Tensor:
    """[num_words] -> [2 * ceil(num_words / block)]: per block its weighted sum and that of its words' upper halves.

    The upper halves come in a second time because a change in a word's top bit alone would be lost as soon as
    another word changes there too: odd multiples of 2^63 cancel in pairs.
    """
    weights = _weights(words.device, level)
    return torch.cat([_fold_chunk(chunk, weights) for chunk in torch.split(words, _CHUNK[words.device.type])])


def _fold_chunk(chunk: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    if len(chunk) % _BLOCK:
        chunk = torch.nn.functional.pad(chunk, (0, -len(chunk) % _BLOCK))
    rows = chunk.view(-1, _BLOCK)
    return torch.stack([_weighted_sums(rows, weights), _weighted_sums(rows >> 32, weights)], dim=1).flatten()


def _weighted_sums(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    if rows.is_cuda:  # CUDA has no integer matrix product
        return (rows * weights).sum(1)
    return torch.mv(rows, weights)


_MULTIPLIER = 0x9E3779B97F4A7C15


@functools.cache
def _weights(device: torch.device, level: int) -> torch.Tensor:
    """[block] odd pseudo-random multipliers of one tree level: SplitMix64 (Steele, Lea, Flood 2014)."""
    values = [_splitmix(level * _BLOCK + position) | 1 for position in range(_BLOCK)]
    return torch.tensor([value - (value >> 63 << 64) for value in values], dtype=torch.int64, device=device)


def _splitmix(position: int) -> int:
    mixed = ((position + 1) * _MULTIPLIER) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
