"""Which sequences stand together in a micro-batch, and which rank gets it. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from slime.models.blocks import KEYS_A_ROW
from slime.train.fill import Bins, Sizes, deal, fewest, fill
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
    attention_length: float
    whole_attempts: bool = False
    lookahead: int = 0

    def work(self, samples: Sequence[TrainSample], unit: Unit) -> float:
        """Of the tokens of a unit, in tokens of a sequence that is so short that attention costs nothing."""
        shared, found = self.num_shared(samples, unit), 0.0
        for number, sample in enumerate(samples[i] for i in unit):
            skipped, length = shared * (number > 0), sample.num_tokens
            found += length - skipped + (length**2 - skipped**2) / self.attention_length
        return found

    def num_shared(self, samples: Sequence[TrainSample], unit: Unit) -> int:
        """Tokens that all but the first sample of a unit lack: not a prompt's last ones, which predict other labels in
        each of them."""
        first = samples[unit[0]]
        shared = first.num_tokens - first.num_response_tokens - 1 - self.lookahead
        return max(0, shared) if self.share_prompts else 0

    def room(self, samples: Sequence[TrainSample], unit: Unit) -> int:
        """Rows that a unit takes of its micro-batch: its tokens, or, if that is more, its keys over `KEYS_A_ROW`.
        Every sample that shares a prompt counts the prompt's keys again."""
        first, *others = unit
        shared = self.num_shared(samples, unit)
        rows = [padded(samples[i].num_tokens - shared, self.align) for i in others]
        rows.append(padded(samples[first].num_tokens, self.align))
        return max(sum(rows), -(-(sum(rows) + shared * len(others)) // KEYS_A_ROW))

    def sizes(self, samples: Sequence[TrainSample], units: Sequence[Unit]) -> Sizes:
        """Of all units."""
        if all(len(unit) == 1 for unit in units):
            tokens = np.asarray([samples[unit[0]].num_tokens for unit in units], dtype=np.int64)
            return Sizes(
                -(-tokens // self.align) * self.align, tokens + tokens**2 / self.attention_length, self.max_tokens
            )
        rows, work = ([of(samples, unit) for unit in units] for of in (self.room, self.work))
        return Sizes(np.asarray(rows), np.asarray(work), self.max_tokens)


def padded(num_tokens: int, align: int) -> int:
    return -(-num_tokens // align) * align


def share_out(samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> list[list[list[Unit]]]:
    """The units of each micro-batch of each rank; every rank has the same number of micro-batches."""
    if shape.whole_attempts:
        packed = _Packed.of(samples, attempts(samples, members), shape)
    elif shape.share_prompts:
        packed = _with_shared_prompts(samples, members, shape)
    else:
        packed = _Packed.of(samples, [[i] for i in members], shape)
    by_rank = deal(packed.bins, packed.sizes, shape.num_dp)
    return [[[packed.units[i] for i in content] for content in of_rank] for of_rank in by_rank]


@dataclass(frozen=True)
class _Packed:
    """Units, their sizes, and the micro-batches that they are in."""

    units: list[Unit]
    sizes: Sizes
    bins: Bins

    @classmethod
    def of(cls, samples: Sequence[TrainSample], units: list[Unit], shape: Shape) -> _Packed:
        sizes = shape.sizes(samples, units)
        return cls(units, sizes, fill(sizes, shape.num_dp, shape.num_dp * shape.multiple))


def attempts(samples: Sequence[TrainSample], members: Sequence[int]) -> list[Unit]:
    """Numbers of the samples that are segments of one attempt, attempt by attempt."""
    found: list[Unit] = []
    for i in members:
        if found and samples[i].attempt is not None and samples[found[-1][-1]].attempt == samples[i].attempt:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _with_shared_prompts(samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> _Packed:
    """The fewest micro-batches over units of several sizes: large ones have fewer rows, small ones leave less room."""
    groups = [list(group) for _, group in groupby(members, lambda i: _prompt(samples[i]).tobytes())]
    rows, multiple = int(shape.sizes(samples, groups).rows.sum()), shape.num_dp * shape.multiple
    most, tried = min(shape.max_tokens, rows / multiple), []
    for halved in range(HALVINGS):
        tried.append(_Packed.of(samples, _parts(samples, groups, shape, most / 2**halved), shape))
        if len(tried[-1].bins) == fewest(np.asarray([rows]), shape.max_tokens, multiple):
            break
    else:
        tried.append(_Packed.of(samples, [[i] for i in members], shape))
    return min(tried, key=lambda found: len(found.bins))


def _parts(samples: Sequence[TrainSample], groups: Sequence[Unit], shape: Shape, most: float) -> list[Unit]:
    """The groups, halved until none has more than `most` rows or it is one sample."""
    waiting, units = list(groups[::-1]), []
    while waiting:
        unit = waiting.pop()
        if len(unit) > 1 and shape.room(samples, unit) > most:
            waiting += [unit[len(unit) // 2 :], unit[: len(unit) // 2]]
        else:
            units.append(unit)
    return units


def _prompt(sample: TrainSample) -> np.ndarray:
    return sample.tokens[: sample.num_tokens - sample.num_response_tokens]
