"""Which sequences stand together in a micro-batch, and which rank gets it. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from slime.models.blocks import KEYS_A_ROW, Attention
from slime.train.deal import deal
from slime.train.fill import Filled, Sizes, fewest, fill
from slime.types import TrainSample

HALVINGS = 4
"""How often the largest unit is halved, to see whether smaller ones need fewer micro-batches."""


class Unit(NamedTuple):
    """Samples that stay together: segments of an attempt, or samples that lack tokens they share; or one.

    Attributes:
        members: their numbers.
        shared: how many tokens of the one before it each begins with and lacks; 0 of the first.
    """

    members: list[int]
    shared: list[int]


@dataclass(frozen=True)
class Shape:
    """Limits and costs that all steps are packed for; see `pack`. With a `share_below` of 0 nothing is shared."""

    num_dp: int
    multiple: int
    align: int
    max_tokens: int
    share_below: float
    attention: Sequence[Attention] = ()
    whole_attempts: bool = False
    lookahead: int = 0

    def work(self, tokens: np.ndarray) -> np.ndarray:
        """The work of whole sequences, in tokens of one that is so short that attention costs nothing:
        `Attention.keys` in the mean of their queries."""
        found = tokens.astype(np.float64)
        for one in self.attention:
            met = np.minimum(tokens, one.most_keys)
            found += one.flops * met * (tokens - met / 2)
        return found

    def sizes(self, samples: Sequence[TrainSample], units: Sequence[Unit]) -> Sizes:
        """The sizes of all units."""
        return _Members(samples, units, self).sizes(_starts(len(unit.members) for unit in units))


class _Members:
    """Samples in the order of their units, whose first ones are at `starts` [units].

    Attributes:
        tokens: [members].
        shared: that a sample lacks if the one before it is of its unit, [members].
    """

    def __init__(self, samples: Sequence[TrainSample], units: Sequence[Unit], shape: Shape) -> None:
        self.tokens = np.asarray([len(samples[i].tokens) for unit in units for i in unit.members])
        self.shared = np.asarray([count for unit in units for count in unit.shared])
        self.shape = shape

    def skipped(self, starts: np.ndarray) -> np.ndarray:
        """Tokens that each lacks: the first of a unit none."""
        found = self.shared.copy()
        found[starts] = 0
        return found

    def sizes(self, starts: np.ndarray) -> Sizes:
        """A unit takes its tokens as rows of its micro-batch, or, if that is more, its keys over `KEYS_A_ROW`. Every
        sample that shares tokens counts their keys again."""
        skipped = self.skipped(starts)
        rows = np.add.reduceat(padded(self.tokens - skipped, self.shape.align), starts)
        keys = rows + np.add.reduceat(skipped, starts)
        work = np.add.reduceat(self.shape.work(self.tokens) - self.shape.work(skipped), starts)
        return Sizes(np.maximum(rows, -(-keys // KEYS_A_ROW)), work, self.shape.max_tokens)

    def filled(self, starts: np.ndarray) -> _Packed:
        sizes, num_dp = self.sizes(starts), self.shape.num_dp
        return _Packed(starts, sizes, fill(sizes, num_dp, num_dp * self.shape.multiple))

    def divided(self, starts: np.ndarray, most: float) -> np.ndarray:
        """Starts of units that are halved until none has more than `most` rows or it is one sample: in their middle
        half, where least is shared."""
        while True:
            counts = np.diff(starts, append=len(self.tokens))
            large = (counts > 1) & (self.sizes(starts).rows > most)
            if not large.any():
                return starts
            starts = np.sort(np.append(starts, self._cuts(starts[large], counts[large])))

    def _cuts(self, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        margins = np.maximum(1, counts // 4)
        widths = counts - 2 * margins + 1
        units, ends = np.repeat(np.arange(len(starts)), widths), np.cumsum(widths)
        places = np.arange(ends[-1]) + np.repeat(starts + margins - ends + widths, widths)
        distances = np.abs(places - np.repeat(starts + counts // 2, widths))
        found: np.ndarray = places[np.lexsort((distances, self.shared[places], units))[ends - widths]]
        return found


class _Packed(NamedTuple):
    """Starts of units, their sizes, and the micro-batches that they are in."""

    starts: np.ndarray
    sizes: Sizes
    filled: Filled


Tokens = TypeVar("Tokens", int, np.ndarray)


def padded(num_tokens: Tokens, align: int) -> Tokens:
    """The tokens up to a multiple of `align`."""
    return -(-num_tokens // align) * align


def share_out(samples: Sequence[TrainSample], members: Sequence[int], shape: Shape) -> list[list[list[Unit]]]:
    """The units of each micro-batch of each rank; every rank has the same number of micro-batches."""
    if shape.whole_attempts:
        groups = [_joined(samples, attempt, shape) for attempt in attempts(samples, members)]
    elif shape.share_below:
        by_prompt = groupby(attempts(samples, members), lambda attempt: _context(samples[attempt[0]]).tobytes())
        groups = [_group(samples, list(group), shape) for _, group in by_prompt]
    else:
        groups = [Unit(list(members), [0] * len(members))]
    sequences, starts = _Members(samples, groups, shape), _starts(len(group.members) for group in groups)
    alone, own = (padded(sequences.tokens - lacked, shape.align).sum() for lacked in (0, sequences.skipped(starts)))
    if own / alone > shape.share_below > 0:
        return share_out(samples, members, replace(shape, share_below=0.0))
    if shape.whole_attempts:
        packed = sequences.filled(starts)
    elif shape.share_below:
        packed = _with_shared_prompts(sequences, starts)
    else:
        packed = sequences.filled(np.arange(len(members)))
    numbers, shared = [i for group in groups for i in group.members], sequences.skipped(packed.starts).tolist()
    borders = pairwise([*packed.starts.tolist(), len(numbers)])
    units = [Unit(numbers[start:end], shared[start:end]) for start, end in borders]
    by_rank = deal(packed.filled, packed.sizes, shape.num_dp)
    return [[[units[i] for i in content] for content in of_rank] for of_rank in by_rank]


def _starts(counts: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *counts])[:-1]


def attempts(samples: Sequence[TrainSample], members: Sequence[int]) -> list[list[int]]:
    """Numbers of the samples that are segments of one attempt, attempt by attempt."""
    found: list[list[int]] = []
    for i in members:
        if found and samples[i].attempt is not None and samples[found[-1][-1]].attempt == samples[i].attempt:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _with_shared_prompts(members: _Members, groups: np.ndarray) -> _Packed:
    """The fewest micro-batches over units of several sizes: large ones have fewer rows, small ones leave less room.
    `groups`: where those start that share tokens."""
    shape = members.shape
    rows, multiple = int(members.sizes(groups).rows.sum()), shape.num_dp * shape.multiple
    most = min(shape.max_tokens, rows / multiple)
    best = members.filled(members.divided(groups, most))
    for halved in range(1, HALVINGS + 1):
        starts = members.divided(groups, most / 2**halved if halved < HALVINGS else 0)
        if fewest(members.sizes(starts).rows, shape.max_tokens, multiple) < best.filled.num_bins:
            best = min(best, members.filled(starts), key=lambda found: found.filled.num_bins)
    return best


def _group(samples: Sequence[TrainSample], group: Sequence[list[int]], shape: Shape) -> Unit:
    """Attempts at one prompt. Those of one segment each have nothing else in common that is without loss."""
    members = [i for attempt in group for i in attempt]
    if len(members) > len(group):
        return _joined(samples, _by_trie(samples, members), shape)
    shared = max(0, len(_context(samples[members[0]])) - 1 - shape.lookahead)
    return Unit(members, [0, *[shared] * (len(members) - 1)])


def _joined(samples: Sequence[TrainSample], members: list[int], shape: Shape) -> Unit:
    """A sample lacks of its context what it has in common with the one before it. Its own are the last tokens, which
    predict other ones, and all whose predictions have a loss in it: each loss stays where it is."""
    pairs = pairwise(members) if shape.share_below else ()
    common = [_num_common(_read(samples[before]), _context(samples[i])[:-1]) for before, i in pairs]
    shared = [max(0, count - shape.lookahead) for count in common]
    return Unit(members, [0, *shared] if shape.share_below else [0] * len(members))


def _by_trie(samples: Sequence[TrainSample], members: Sequence[int]) -> list[int]:
    """Depth first through the trie of all tokens: no earlier sample has more in common with one than that before it. Of
    a node's branches that comes first whose context is shortest, which would lose most behind another."""
    order = sorted(members, key=lambda i: _read(samples[i]).tobytes())
    common = [_num_common(_read(samples[one]), _read(samples[other])) for one, other in pairwise(order)]
    blocks = {place: (place, place, [i]) for place, i in enumerate(order)}  # by the places of both their ends
    for place in sorted(range(len(common)), key=lambda place: -common[place]):
        (start, _, left), (_, end, right) = blocks[place], blocks[place + 1]
        first, second = sorted((left, right), key=lambda block: (len(_context(samples[block[0]])), block[0]))
        blocks[start] = blocks[end] = start, end, first + second
    return blocks[0][2]


def _num_common(one: np.ndarray, other: np.ndarray) -> int:
    """Tokens with which both begin."""
    most = min(len(one), len(other))
    differs = np.flatnonzero(one[:most] != other[:most])
    return int(differs[0]) if len(differs) else most


def _read(sample: TrainSample) -> np.ndarray:
    """All but its last token, from which nothing is predicted: engines compute nothing of it that they could record."""
    return sample.tokens[:-1]


def _context(sample: TrainSample) -> np.ndarray:
    """Its first tokens, that are without loss."""
    return sample.tokens[: sample.num_tokens - sample.num_response_tokens]
