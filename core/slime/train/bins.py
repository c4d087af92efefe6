"""Which sequences stand together in a micro-batch, and which rank gets it. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np

from slime.models.blocks import KEYS_A_ROW, Attention
from slime.train.deal import deal
from slime.train.fill import Filled, Sizes, fewest, fill
from slime.types import TrainSample

Unit = list[int]
"""Samples that stay together: segments of an attempt, or samples that lack the tokens they share with the first; or
one."""
HALVINGS = 4
"""How often the largest unit is halved, to see whether smaller ones need fewer micro-batches."""


@dataclass(frozen=True)
class Shape:
    """What all steps are packed for; see `pack`."""

    num_dp: int
    multiple: int
    align: int
    max_tokens: int
    share_prompts: bool
    attention: Sequence[Attention] = ()
    whole_attempts: bool = False
    lookahead: int = 0

    def work(self, tokens: np.ndarray) -> np.ndarray:
        """Of whole sequences, in tokens of one that is so short that attention costs nothing: `Attention.keys` in the
        mean of their queries."""
        found = tokens.astype(np.float64)
        for one in self.attention:
            met = np.minimum(tokens, one.most_keys)
            found += one.flops * met * (tokens - met / 2)
        return found

    def num_shared(self, samples: Sequence[TrainSample], unit: Unit) -> int:
        """Tokens that all but the first sample of a unit lack: not a prompt's last ones, which predict other labels in
        each of them."""
        if not self.share_prompts:
            return 0
        first = samples[unit[0]]
        return max(0, len(first.tokens) - len(first.loss_mask) - 1 - self.lookahead)

    def sizes(self, samples: Sequence[TrainSample], units: Sequence[Unit]) -> Sizes:
        """Of all units."""
        members = _Members.of(samples, [i for unit in units for i in unit], self)
        return members.sizes(_starts(map(len, units)))


@dataclass(frozen=True)
class _Members:
    """Samples in the order of their units, whose first ones are at `starts` [units].

    Attributes:
        tokens: [members].
        shared: that a sample lacks if the first of its unit has its prompt, [members].
    """

    tokens: np.ndarray
    shared: np.ndarray
    shape: Shape

    @classmethod
    def of(cls, samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> _Members:
        tokens = np.fromiter((len(samples[i].tokens) for i in members), np.int64, len(members))
        if not shape.share_prompts:
            return cls(tokens, np.zeros_like(tokens), shape)
        shared = np.fromiter((shape.num_shared(samples, [i]) for i in members), np.int64, len(members))
        return cls(tokens, shared, shape)

    def counts(self, starts: np.ndarray) -> np.ndarray:
        """Samples of each unit."""
        return np.diff(starts, append=len(self.tokens))

    def sizes(self, starts: np.ndarray) -> Sizes:
        """A unit takes its tokens as rows of its micro-batch, or, if that is more, its keys over `KEYS_A_ROW`. Every
        sample that shares a prompt counts the prompt's keys again."""
        skipped = np.repeat(self.shared[starts], self.counts(starts))
        skipped[starts] = 0
        rows = np.add.reduceat(padded(self.tokens - skipped, self.shape.align), starts)
        keys = rows + np.add.reduceat(skipped, starts)
        work = np.add.reduceat(self.shape.work(self.tokens) - self.shape.work(skipped), starts)
        return Sizes(np.maximum(rows, -(-keys // KEYS_A_ROW)), work, self.shape.max_tokens)

    def filled(self, starts: np.ndarray) -> _Packed:
        sizes, num_dp = self.sizes(starts), self.shape.num_dp
        return _Packed(starts, sizes, fill(sizes, num_dp, num_dp * self.shape.multiple))

    def divided(self, starts: np.ndarray, most: float) -> np.ndarray:
        """Where units start that are halved until none has more than `most` rows or it is one sample."""
        while True:
            counts = self.counts(starts)
            large = (counts > 1) & (self.sizes(starts).rows > most)
            if not large.any():
                return starts
            starts = np.sort(np.append(starts, (starts + counts // 2)[large]))


class _Packed(NamedTuple):
    """Where units start, their sizes, and the micro-batches that they are in."""

    starts: np.ndarray
    sizes: Sizes
    filled: Filled


Tokens = TypeVar("Tokens", int, np.ndarray)


def padded(num_tokens: Tokens, align: int) -> Tokens:
    """To a multiple of `align`."""
    return -(-num_tokens // align) * align


def share_out(samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> list[list[list[Unit]]]:
    """The units of each micro-batch of each rank; every rank has the same number of micro-batches."""
    numbers = list(members)
    sequences = _Members.of(samples, numbers, shape)
    if shape.whole_attempts:
        packed = sequences.filled(_starts(map(len, attempts(samples, numbers))))
    elif shape.share_prompts:
        packed = _with_shared_prompts(sequences, [_prompt(samples[i]) for i in numbers])
    else:
        packed = sequences.filled(np.arange(len(numbers)))
    starts = packed.starts.tolist()
    units = [numbers[start:end] for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True)]
    by_rank = deal(packed.filled, packed.sizes, shape.num_dp)
    return [[[units[i] for i in content] for content in of_rank] for of_rank in by_rank]


def _starts(counts: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *counts])[:-1]


def attempts(samples: Sequence[TrainSample], members: Sequence[int]) -> list[Unit]:
    """Numbers of the samples that are segments of one attempt, attempt by attempt."""
    found: list[Unit] = []
    for i in members:
        if found and samples[i].attempt is not None and samples[found[-1][-1]].attempt == samples[i].attempt:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _with_shared_prompts(members: _Members, prompts: Sequence[bytes]) -> _Packed:
    """The fewest micro-batches over units of several sizes: large ones have fewer rows, small ones leave less room."""
    shape = members.shape
    groups = _starts([len(list(group)) for _, group in groupby(prompts)])
    rows, multiple = int(members.sizes(groups).rows.sum()), shape.num_dp * shape.multiple
    most = min(shape.max_tokens, rows / multiple)
    best = members.filled(members.divided(groups, most))
    for halved in range(1, HALVINGS + 1):
        starts = members.divided(groups, most / 2**halved if halved < HALVINGS else 0)
        if fewest(members.sizes(starts).rows, shape.max_tokens, multiple) < best.filled.num_bins:
            best = min(best, members.filled(starts), key=lambda found: found.filled.num_bins)
    return best


def _prompt(sample: TrainSample) -> bytes:
    return sample.tokens[: sample.num_tokens - sample.num_response_tokens].tobytes()
