"""Which sequences stand together in a micro-batch, and which rank gets it. No torch."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from slime.types import TrainSample

Bins = list[list[int]]
"""Numbers of units by micro-batch."""

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
    attention_length: float
    whole_attempts: bool = False

    def work(self, samples: Sequence[TrainSample], unit: Unit) -> float:
        """Of the tokens of a unit, in tokens of a sequence that is so short that attention costs nothing."""
        shared, found = self.num_shared(samples, unit), 0.0
        for number, sample in enumerate(samples[i] for i in unit):
            skipped, length = shared * (number > 0), sample.num_tokens
            found += length - skipped + (length**2 - skipped**2) / self.attention_length
        return found

    def num_shared(self, samples: Sequence[TrainSample], unit: Unit) -> int:
        """Tokens that all but the first sample of a unit lack: not a prompt's last one, which predicts other labels in
        each of them."""
        first = samples[unit[0]]
        return first.num_tokens - first.num_response_tokens - 1 if self.share_prompts else 0

    def num_rows(self, samples: Sequence[TrainSample], unit: Unit) -> int:
        """Rows of a unit in its micro-batch."""
        first, *others = unit
        shared = self.num_shared(samples, unit)
        own = sum(padded(samples[i].num_tokens - shared, self.align) for i in others)
        return padded(samples[first].num_tokens, self.align) + own


def padded(num_tokens: int, align: int) -> int:
    return -(-num_tokens // align) * align


def share_out(samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> list[list[list[Unit]]]:
    """The units of each micro-batch of each rank; every rank has the same number of micro-batches."""
    if shape.whole_attempts:
        units, bins = _bins(samples, attempts(samples, members), shape)
    elif shape.share_prompts:
        units, bins = _shared_bins(samples, members, shape)
    else:
        units, bins = _bins_apart(samples, members, shape)
    work = [shape.work(samples, unit) for unit in units]
    by_rank = _deal(bins, [sum(work[i] for i in content) for content in bins], shape.num_dp)
    return [[[units[i] for i in content] for content in of_rank] for of_rank in by_rank]


def attempts(samples: Sequence[TrainSample], members: Sequence[int]) -> list[Unit]:
    """Numbers of the samples that are segments of one attempt, attempt by attempt."""
    found: list[Unit] = []
    for i in members:
        if found and samples[i].attempt is not None and samples[found[-1][-1]].attempt == samples[i].attempt:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _bins_apart(samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> tuple[list[Unit], Bins]:
    return _bins(samples, [[i] for i in members], shape)


def _bins(samples: Sequence[TrainSample], units: list[Unit], shape: Shape) -> tuple[list[Unit], Bins]:
    lengths = [shape.num_rows(samples, unit) for unit in units]
    return units, _fill(lengths, shape.max_tokens, shape.num_dp * shape.multiple)


def _shared_bins(samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> tuple[list[Unit], Bins]:
    """The fewest micro-batches over units of several sizes: large ones have fewer rows, small ones leave less room."""
    groups = [list(group) for _, group in groupby(members, lambda i: _prompt(samples[i]).tobytes())]
    rows, multiple = sum(shape.num_rows(samples, group) for group in groups), shape.num_dp * shape.multiple
    most, tried = min(shape.max_tokens, rows / multiple), []
    for halved in range(HALVINGS):
        tried.append(_bins(samples, _parts(samples, groups, shape, most / 2**halved), shape))
        if len(tried[-1][1]) == _fewest(rows, shape.max_tokens, multiple):
            break
    else:
        tried.append(_bins_apart(samples, members, shape))
    return min(tried, key=lambda found: len(found[1]))


def _parts(samples: Sequence[TrainSample], groups: Sequence[Unit], shape: Shape, most: float) -> list[Unit]:
    """The groups, halved until none has more than `most` rows or it is one sample."""
    waiting, units = list(groups[::-1]), []
    while waiting:
        unit = waiting.pop()
        if len(unit) > 1 and shape.num_rows(samples, unit) > most:
            waiting += [unit[len(unit) // 2 :], unit[: len(unit) // 2]]
        else:
            units.append(unit)
    return units


def _deal(bins: Bins, work: Sequence[float], num_dp: int) -> list[Bins]:
    """The micro-batches of each rank. Those of like work are done at one time, because ranks that share experts or
    pipelines wait for the slowest; the largest of them goes to the rank that has least so far."""
    order = sorted(range(len(bins)), key=lambda number: -work[number])
    ranks: list[Bins] = [[] for _ in range(num_dp)]
    held = [0.0] * num_dp
    for first in range(0, len(order), num_dp):
        emptiest_first = sorted(range(num_dp), key=lambda rank: held[rank])
        for rank, number in zip(emptiest_first, order[first : first + num_dp], strict=True):
            ranks[rank].append(bins[number])
            held[rank] += work[number]
    return ranks


def _prompt(sample: TrainSample) -> np.ndarray:
    return sample.tokens[: sample.num_tokens - sample.num_response_tokens]


def _fewest(rows: int, max_tokens: int, multiple: int) -> int:
    return math.ceil(max(1, rows / max_tokens) / multiple) * multiple


def _fill(lengths: Sequence[int], max_tokens: int, multiple: int) -> Bins:
    """The fewest micro-batches, a multiple of `multiple`, that hold everything, evenly filled."""
    num_bins = _fewest(sum(lengths), max_tokens, multiple)
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    while True:
        for strategy in (_into_emptiest, _into_first_that_fits):
            if bins := strategy(longest_first, lengths, max_tokens, num_bins):
                return bins
        num_bins += multiple


def _into_emptiest(order: list[int], lengths: Sequence[int], max_tokens: int, num_bins: int) -> Bins | None:
    """Longest processing time first (Graham 1969): the most even filling; None if something does not fit."""
    bins: Bins = [[] for _ in range(num_bins)]
    heap = [(0, number) for number in range(num_bins)]
    for i in order:
        filled, number = heap[0]
        if filled + lengths[i] > max_tokens:
            return None
        heapq.heapreplace(heap, (filled + lengths[i], number))
        bins[number].append(i)
    return bins


def _into_first_that_fits(order: list[int], lengths: Sequence[int], max_tokens: int, num_bins: int) -> Bins | None:
    """First fit decreasing: fills tightly where even filling runs over; None if something does not fit."""
    bins: Bins = [[] for _ in range(num_bins)]
    room = np.full(num_bins, max_tokens)
    for i in order:
        fits = np.flatnonzero(room >= lengths[i])
        if not len(fits):
            return None
        room[fits[0]] -= lengths[i]
        bins[fits[0]].append(i)
    return bins
