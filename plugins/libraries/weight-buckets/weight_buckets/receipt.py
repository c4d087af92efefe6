"""The note that travels with each bucket, and content digests of tensors, the same on CPU and GPU.

The digest is a multilinear hash modulo 2^64 of 32-bit halves (Carter and Wegman 1979, with the fixed odd multipliers of
SplitMix64), folded as a tree. It depends on every bit and on the order: a guard against loss and mix-up, not against an
adversary.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from weight_buckets.kernels import Counts

BLOCK = 4096
"""Words that one step of the tree folds into one."""
_NUM_LEVELS = 3  # of every tree: enough for BLOCK^3 words
_NUM_ROWS = 8  # blocks at once on a CPU: what a core's cache holds
_MASK = (1 << 64) - 1

Words = np.ndarray[Any, np.dtype[np.uint64]]

NOTE_KEY = "slime_receipt"
"""Key of the note in a bucket, and of the engine's answer in the message it returns."""


@dataclass(frozen=True)
class BucketNote:
    """The note of a bucket: its weight version, and its place among that version's buckets, from 0.

    Attributes:
        digests: with the last bucket, one for each tensor of the version in the order in which they came.
    """

    version: int
    index: int
    last: bool
    digests: list[int]

    def to_dict(self) -> dict[str, Any]:
        """The note as plain values: SGLang's unpickler admits no class of ours."""
        return dict(vars(self))


class Fingerprint:
    """Digests of the tensors of a version as they come by, and one of all with their names, shapes and dtypes, whatever
    their order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._labels: list[int] = []
        self._sizes: list[int] = []
        self._started: list[Started] = []

    def add(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Read tensors of one device, without waiting for it."""
        self._started.append(start_digests([tensor for _, tensor in tensors]))
        self._sizes += [tensor.nbytes for _, tensor in tensors]
        self._labels += [_label(name, tensor.shape, tensor.dtype) for name, tensor in tensors]
        self.names += [name for name, _ in tensors]

    def digests(self) -> list[int]:
        """The digest of each tensor, in their order; waits for their device."""
        return finish_digests(self._started, self._sizes)

    def summary(self, digests: Sequence[int]) -> dict[str, Any]:
        """The numbers in which both sides must agree."""
        labels, contents = np.array(self._labels, np.uint64), np.array(digests, np.uint64)
        fingerprint = int(_splitmix(labels ^ _splitmix(contents)).sum(dtype=np.uint64))
        return {"tensors": len(self.names), "bytes": sum(self._sizes), "fingerprint": f"{fingerprint:016x}"}


def total(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of a version from those of its parts."""
    fingerprint = sum(int(summary["fingerprint"], 16) for summary in summaries) & _MASK
    counts = {key: sum(summary[key] for summary in summaries) for key in ("tensors", "bytes")}
    return {**counts, "fingerprint": f"{fingerprint:016x}"}


@functools.lru_cache(maxsize=2**18)  # every version brings the same ones
def _label(name: str, shape: torch.Size, dtype: torch.dtype) -> int:
    line = f"{name}|{tuple(shape)}|{dtype}"
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little")


def tensor_digest(tensor: torch.Tensor) -> int:
    """64-bit digest of the bytes of `tensor` (any shape and dtype, read in C order)."""
    return finish_digests([start_digests([tensor])], [tensor.nbytes])[0]


@dataclass(frozen=True)
class Started:
    """Tensors that were read once: a word for each block.

    Attributes:
        sums: [number of blocks of all] int64, on the device of the tensors.
        num_blocks: [num_tensors] int64, at least 1 each.
    """

    sums: torch.Tensor
    num_blocks: Counts


def start_digests(tensors: Sequence[torch.Tensor]) -> Started:
    """Read tensors of one device, at least one, without waiting for it."""
    words = [tensor if tensor.is_cuda and is_words(tensor) else _words(tensor) for tensor in tensors]
    device = words[0].device
    if device.type == "cpu":
        return fold(words, hash_multipliers(device, 0))
    from weight_buckets import kernels

    return Started(*kernels.fold(words, hash_multipliers(device, 0)))


def is_words(tensor: torch.Tensor) -> bool:
    """Its memory can be read as int64, without a copy."""
    offset = tensor.storage_offset() * tensor.element_size()
    return tensor.is_contiguous() and tensor.nbytes % 8 == 0 and offset % 8 == 0


def finish_digests(started: Sequence[Started], sizes: Sequence[int]) -> list[int]:
    """The digests of tensors of `sizes` bytes that `start_digests` read; waits for their device once."""
    if not started:
        return []
    sums = torch.cat([each.sums for each in started])
    num_words = np.concatenate([each.num_blocks for each in started])
    for level in range(1, _NUM_LEVELS):
        sums, num_words = _fold_sums(sums, num_words, hash_multipliers(sums.device, level))
    digests: list[int] = (_unsigned(sums) + _splitmix(np.array(sizes, np.uint64))).tolist()
    return digests


def _fold_sums(sums: torch.Tensor, num_words: Counts, weights: torch.Tensor) -> tuple[torch.Tensor, Counts]:
    """A level of many small trees at once, each of `num_words` of the sums."""
    num_blocks = -(-num_words // BLOCK)
    place = np.arange(num_words.sum()) - np.repeat(np.cumsum(num_words) - num_words, num_words)
    owner = np.repeat(np.cumsum(num_blocks) - num_blocks, num_words) + place // BLOCK
    first, second = weights[:, torch.from_numpy(place % BLOCK).to(sums.device)]
    products = sums * first + ((sums >> 32) & 0xFFFFFFFF) * second
    folded = sums.new_zeros(int(num_blocks.sum()))
    return folded.index_add_(0, torch.from_numpy(owner).to(sums.device), products), num_blocks


def _unsigned(words: torch.Tensor) -> Words:
    return words.cpu().numpy().view(np.uint64)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes as int64 words, zero-padded; without a copy where length and alignment allow."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if len(data) % 8:
        return torch.nn.functional.pad(data, (0, -len(data) % 8)).view(torch.int64)
    if data.storage_offset() % 8:
        data = data.clone()
    return data.view(torch.int64)


def fold(tensors: Sequence[torch.Tensor], weights: torch.Tensor) -> Started:
    """The lowest level of the tree: of each block its words w times their weights, and (w >> 32) times a second weight,
    without which flipping the top bit of two words cancels modulo 2^64.

    Args:
        tensors: [num_words] int64 each, on a CPU.
        weights: [2, BLOCK] int64.
    """
    first, second = weights.numpy().view(np.uint64)
    sums = [_fold(each.numpy().view(np.uint64), first, second) for each in tensors]
    return Started(torch.from_numpy(np.concatenate(sums).view(np.int64)), np.array([len(each) for each in sums]))


def _fold(words: Words, first: Words, second: Words) -> Words:
    """`einsum`, because numpy's and torch's other integer products do not use the vector unit."""
    num_blocks = len(words) // BLOCK
    rows, rest = words[: num_blocks * BLOCK].reshape(-1, BLOCK), words[num_blocks * BLOCK :][None]
    uppers = np.empty((min(num_blocks, _NUM_ROWS), BLOCK), np.uint64)
    sums = []
    for start in range(0, num_blocks, _NUM_ROWS):
        some = rows[start : start + _NUM_ROWS]
        upper = np.right_shift(some, 32, out=uppers[: len(some)])
        sums.append(np.einsum("ij,j->i", some, first) + np.einsum("ij,j->i", upper, second))
    if rest.size or not num_blocks:
        sums.append(rest @ first[: rest.size] + (rest >> 32) @ second[: rest.size])
    return np.concatenate(sums)


_MULTIPLIER = 0x9E3779B97F4A7C15


@functools.cache
def hash_multipliers(device: torch.device, level: int) -> torch.Tensor:
    """[2, BLOCK] int64 odd pseudo-random multipliers of one tree level: SplitMix64 (Steele, Lea, Flood 2014)."""
    values = _splitmix(np.arange(2 * level * BLOCK, 2 * (level + 1) * BLOCK, dtype=np.uint64)) | np.uint64(1)
    return torch.from_numpy(values.view(np.int64).reshape(2, BLOCK)).to(device)


def _splitmix(positions: Words) -> Words:
    """SplitMix64 of positions, modulo 2^64 as numpy's arrays are."""
    mixed = (positions + np.uint64(1)) * np.uint64(_MULTIPLIER)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
