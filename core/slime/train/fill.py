"""From the sizes of units to micro-batches: which stand together. No torch.

A unit has rows and work. A micro-batch has a maximum of rows. Ranks that share experts wait at every micro-batch for
the rank with the most work, so the micro-batches that they compute at the same time, a round, should have equal work.

Nothing depends on chance. `benchmarks/packing.py` prints how long it takes.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

EVEN = 1.005
"""Work of the busiest rank over the mean, and that of the longest of each round: from which on more is tried."""

_MOST_REPAIRS, _FEW = 4, 2048
"""Rounds that are filled again; units that are placed one by one if they cannot be placed many at a time."""


@dataclass(frozen=True)
class Sizes:
    """Of all units: `rows` and `work` [units]; `cap`: rows that a micro-batch has at most."""

    rows: np.ndarray
    work: np.ndarray
    cap: int


@dataclass(frozen=True)
class Filled:
    """`place` [units]: the micro-batch of each; their number."""

    place: np.ndarray
    num_bins: int

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Of the units of each micro-batch."""
        return np.bincount(self.place, values, self.num_bins)


class _Rest(NamedTuple):
    """Units `left` without a place, longest first, and the `work` [units] as which each counts; micro-batches `free`
    for them; the `place` [units] of all others; `room`, rows, and work `held` of each micro-batch."""

    left: np.ndarray
    work: np.ndarray
    free: np.ndarray
    place: np.ndarray
    room: np.ndarray
    held: np.ndarray


def fewest(rows: np.ndarray, cap: int, multiple: int) -> int:
    """Micro-batches that are needed at least, a multiple of `multiple`.

    By dual feasible functions (Fekete & Schepers 2001): rows are rounded in ways under which no set of units that fits
    a micro-batch has more than a whole one, so that the sums are bounds.
    """
    sizes, counts = np.unique(rows, return_counts=True)
    least = max(1, -(-int(sizes @ counts) // cap))
    for parts in range(1, 65):
        scaled = (parts + 1) * sizes
        whole = scaled // cap * cap
        rounded = np.where(whole == scaled, parts * sizes, whole)
        least = max(least, -(-int(rounded @ counts) // (parts * cap)))
    small = sizes[2 * sizes <= cap]
    for ignored in small[:: max(1, len(small) // 64)]:
        rounded = np.where(sizes > cap - ignored, cap, np.where(sizes < ignored, 0, sizes))
        least = max(least, -(-int(rounded @ counts) // cap))
    return math.ceil(least / multiple) * multiple


def fill(sizes: Sizes, num_ranks: int, multiple: int) -> Filled:
    """All units in the fewest micro-batches found, a multiple of `multiple`, with work as even as can be."""
    num_bins = fewest(sizes.rows, sizes.cap, multiple)
    while (found := _Filling(sizes, num_ranks, num_bins).best()) is None:
        num_bins += multiple
    return Filled(found, num_bins)


class _Filling:
    """Units in a number of micro-batches. What is tried gives the micro-batch of each unit, [units], or None if one has
    nowhere to go."""

    def __init__(self, sizes: Sizes, num_ranks: int, num_bins: int) -> None:
        self.sizes, self.num_ranks, self.num_bins = sizes, num_ranks, num_bins
        self.by_work = np.argsort(-sizes.work, kind="stable")

    def best(self) -> np.ndarray | None:
        found, waiting = None, math.inf
        for tried in self._tries():
            if tried is not None and (now := self._waiting(tried)) < waiting:
                found, waiting = tried, now
            if waiting <= EVEN:
                return found
        return self._repaired(found, waiting) if found is not None else self._best_fit()

    def _tries(self) -> Iterator[np.ndarray | None]:
        """With units alone in the first rounds that are more work than others are together, and with fewer of them.

        Whoever does nothing while another rank is at such a unit has lost the time: what stands beside it in its round
        is filled up to its work.
        """
        work, ranks = self.sizes.work[self.by_work][: self.num_bins], self.num_ranks
        rest = self.sizes.work.sum() - np.cumsum(work) + work
        is_large = work * (self.num_bins - np.arange(len(work))) > rest
        large = 0 if ranks == 1 or is_large.all() else int(is_large.argmin())
        for rounds in sorted({-(-large // ranks), large // ranks, 0}, reverse=True):
            first = self.by_work[: rounds * ranks]
            place = np.full(len(self.by_work), -1)
            place[first] = np.arange(len(first))
            heights = np.repeat(self.sizes.work[first[::ranks]], ranks)[: len(first)]
            yield self._completed(place, place[first], heights, np.arange(len(first), self.num_bins))

    def _waiting(self, place: np.ndarray) -> float:
        """Work of the longest of each round, over the mean."""
        rounds = np.sort(np.bincount(place, self.sizes.work, self.num_bins))[:: -self.num_ranks]
        return float(rounds.sum() * self.num_ranks / self.sizes.work.sum())

    def _repaired(self, place: np.ndarray, waiting: float) -> np.ndarray:
        """The rounds in which most is lost are filled again: up to their longest, or to no more than their largest
        unit, whose company goes to other rounds."""
        seen = np.zeros(self.num_bins, np.bool_)
        for _ in range(_MOST_REPAIRS):
            work = np.bincount(place, self.sizes.work, self.num_bins)
            rounds = np.argsort(-work, kind="stable").reshape(-1, self.num_ranks)
            lost = (work[rounds[:, :1]] - work[rounds]).sum(axis=1) * ~seen[rounds].any(axis=1)
            worst = int(lost.argmax())
            if waiting <= EVEN or lost[worst] < 1e-3 * self.sizes.work.sum():
                break
            seen[rounds[worst]] = True
            for tried in (self._raised(place, rounds, worst, work), self._lowered(place, rounds[worst], seen)):
                if tried is not None and (now := self._waiting(tried)) < waiting:
                    place, waiting = tried, now
        return place

    def _raised(self, place: np.ndarray, rounds: np.ndarray, worst: int, work: np.ndarray) -> np.ndarray | None:
        """Heavier rounds stay, and of this one those that are as long as the longest, within a thousandth; of the
        others the largest units. What is left fills lighter rounds."""
        height, low = work[rounds[worst, 0]], rounds[worst][work[rounds[worst]] < 0.999 * work[rounds[worst, 0]]]
        free = rounds[worst + 1 :].ravel()
        return self._completed(self._loosened(place, low, free), low, np.full(len(low), height), free)

    def _lowered(self, place: np.ndarray, bins: np.ndarray, seen: np.ndarray) -> np.ndarray | None:
        """What has no room beside the largest units goes to rounds that were not seen."""
        kept = self._loosened(place, bins, bins[:0])
        work = np.bincount(kept + 1, self.sizes.work, self.num_bins + 1)[1:][bins]
        return self._completed(kept, bins, np.full(len(bins), work.max()), np.flatnonzero(~seen))

    def _loosened(self, place: np.ndarray, but_one: np.ndarray, all_of: np.ndarray) -> np.ndarray:
        """Without, -1, what stands in some micro-batches beside the largest unit, and all of others."""
        largest = np.full(self.num_bins, -1)
        largest[place[self.by_work[::-1]]] = self.by_work[::-1]
        found = np.where(np.isin(place, np.concatenate([but_one, all_of])), -1, place)
        kept = largest[but_one]
        found[kept[kept >= 0]] = but_one[kept >= 0]
        return found

    def _completed(
        self, place: np.ndarray, low: np.ndarray, heights: np.ndarray, free: np.ndarray
    ) -> np.ndarray | None:
        """The units without a place, -1: micro-batches `low` get the largest that have room under `heights` [low], then
        those of `free` the rest."""
        rows, work = self.sizes.rows, self.sizes.work
        room = self.sizes.cap - np.bincount(place + 1, rows, self.num_bins + 1)[1:].astype(np.int64)
        held = np.bincount(place + 1, work, self.num_bins + 1)[1:].astype(np.float64)
        left = np.flatnonzero(place < 0)
        left = left[np.lexsort((work[left], rows[left]))]
        while len(low) and len(left):
            under_room = np.searchsorted(rows[left], room[low], "right")
            slack = heights * (1 + 1e-9) - held[low]  # two equal units are as high as the sum of their work
            under_height = np.searchsorted(np.maximum.accumulate(work[left]), slack, "right")
            wanted = np.minimum(under_room, under_height) - 1
            order, steps = np.argsort(-wanted, kind="stable"), np.arange(len(low))
            taken = np.minimum.accumulate(wanted[order] + steps) - steps  # each another unit
            order, taken = order[taken >= 0], taken[taken >= 0]
            low, heights, units = low[order], heights[order], left[taken]
            place[units] = low
            room[low] -= rows[units]
            held[low] += work[units]
            left = np.delete(left, taken)
        if rows[left].sum() > room[free].sum():
            return None
        ways = [(self._many_at_a_time, False), (self._many_at_a_time, True)]
        if len(left) <= _FEW:
            ways[1:] = [(self._one_by_one, False), (self._one_by_one, True)]
        for method, is_full in ways:
            own = work - rows if is_full else work  # the work that its room will hold counts as a micro-batch's own
            held_then = held + room if is_full else held.copy()
            found = method(_Rest(left[::-1], own, free, place.copy(), room.copy(), held_then))
            if found is not None:
                return found
        return None

    def _many_at_a_time(self, rest: _Rest) -> np.ndarray | None:
        """Each unit to the micro-batch with the least work that has room: as many of them to as many as one with the
        least work would not overtake."""
        left, work, free, place, room, held = rest
        rows = self.sizes.rows
        while len(left) and len(free):
            has_room = free[room[free] >= rows[left[min(len(left), len(free)) - 1]]]
            if not len(has_room):
                return None
            light = has_room[held[has_room] <= held[has_room].min() + max(0.0, work[left[0]])]
            units = left[: len(light)]
            there = light[np.argsort(held[light], kind="stable")[: len(units)]]
            fits = rows[units] <= room[there]
            if 2 * fits.sum() < len(units):
                return self._one_by_one(rest._replace(left=left))
            left = np.concatenate([units[~fits], left[len(units) :]])
            units, there = units[fits], there[fits]
            place[units] = there
            room[there] -= rows[units]
            held[there] += work[units]
        return None if len(left) else place

    def _one_by_one(self, rest: _Rest) -> np.ndarray | None:
        """The same without haste. Those without room wait until units are small enough for them."""
        rooms, found = rest.room.tolist(), []
        lightest = list(zip(rest.held[rest.free].tolist(), rest.free.tolist(), strict=True))
        waiting: list[tuple[int, float, int]] = []
        heapq.heapify(lightest)
        for rows, more in zip(self.sizes.rows[rest.left].tolist(), rest.work[rest.left].tolist(), strict=True):
            while waiting and -waiting[0][0] >= rows:
                _, had, number = heapq.heappop(waiting)
                heapq.heappush(lightest, (had, number))
            while lightest and rooms[lightest[0][1]] < rows:
                had, number = heapq.heappop(lightest)
                heapq.heappush(waiting, (-rooms[number], had, number))
            if not lightest:
                return None
            had, number = lightest[0]
            found.append(number)
            rooms[number] -= rows
            heapq.heapreplace(lightest, (had + more, number))
        rest.place[rest.left] = found
        return rest.place

    def _best_fit(self) -> np.ndarray | None:
        """Each unit, longest first, to the micro-batch whose room it fills best."""
        longest_first = np.argsort(-self.sizes.rows, kind="stable")
        num = self.num_bins  # a micro-batch is its room times `num`, plus its number: to compare integers is quick
        rooms, found = [self.sizes.cap * num + number for number in range(num)], []
        for rows in (self.sizes.rows[longest_first] * num).tolist():
            fullest = bisect_left(rooms, rows)
            if fullest == len(rooms):
                return None
            room = rooms.pop(fullest)
            found.append(room % num)
            insort(rooms, room - rows)
        place = np.empty(len(longest_first), np.int64)
        place[longest_first] = found
        return place
