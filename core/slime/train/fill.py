"""From the sizes of units to micro-batches: which stand together, and which rank gets them. No torch.

A unit has rows and work. A micro-batch has a maximum of rows. Ranks that share experts wait at every micro-batch for
the rank with the most work, so the micro-batches that they compute at the same time, a round, should have equal work.

Nothing depends on chance. `benchmarks/packing.py` prints how long it takes.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Bins = list[list[int]]
"""Numbers of units by micro-batch."""

EVEN = 1.003
"""Work of the busiest rank over the mean, from which on units are moved to other ranks."""

_MOST_MOVES, _MOST_COMPARED, _LIGHTEST = 200, 128, 4
"""Moves of a unit between ranks; units of a rank that are compared with those of another; ranks looked at."""


@dataclass(frozen=True)
class Sizes:
    """Of all units: `rows` and `work` [units]; `cap`: rows that a micro-batch has at most."""

    rows: np.ndarray
    work: np.ndarray
    cap: int


def fewest(rows: np.ndarray, cap: int, multiple: int) -> int:
    """Micro-batches that are needed at least, a multiple of `multiple`.

    By dual feasible functions (Fekete & Schepers 2001): rows are rounded in ways under which no set of units that fits
    a micro-batch has more than a whole one, so that the sums are bounds.
    """
    sizes, counts = np.unique(rows, return_counts=True)
    least = max(1, -(-int(sizes @ counts) // cap))
    for parts in range(1, 65):
        scaled = (parts + 1) * sizes
        rounded = np.where(scaled % cap == 0, parts * sizes, scaled // cap * cap)
        least = max(least, -(-int(rounded @ counts) // (parts * cap)))
    small = sizes[2 * sizes <= cap]
    for ignored in small[:: max(1, len(small) // 64)]:
        rounded = np.where(sizes > cap - ignored, cap, np.where(sizes < ignored, 0, sizes))
        least = max(least, -(-int(rounded @ counts) // cap))
    return math.ceil(least / multiple) * multiple


def fill(sizes: Sizes, num_ranks: int, multiple: int) -> Bins:
    """All units in the fewest micro-batches found, a multiple of `multiple`, with work as even as can be."""
    num_bins = fewest(sizes.rows, sizes.cap, multiple)
    rows, work = sizes.rows.tolist(), sizes.work.tolist()
    longest_first = np.argsort(-sizes.rows, kind="stable").tolist()
    while True:
        begun, left = _beside_the_largest(rows, work, sizes.cap, num_bins, num_ranks)
        for head, rest in (begun, left), ([], longest_first):
            free = num_bins - len(head)
            found = _to_the_least_work(rest, rows, work, sizes.cap, free) or _best_fit(rest, rows, sizes.cap, free)
            if found is not None:
                return head + found
            if not begun:
                break
        num_bins += multiple


def _beside_the_largest(
    rows: Sequence[int], work: Sequence[float], cap: int, num_bins: int, num_ranks: int
) -> tuple[Bins, list[int]]:
    """Micro-batches of units that are more work alone than others are together, and what is left, longest first.

    Whoever does nothing while another rank is at such a unit has lost the time: what stands beside it in its round is
    filled up to its work.
    """
    order, rest, large = sorted(range(len(work)), key=lambda i: -work[i]), sum(work), 0
    while large < min(num_bins, len(order)) and work[order[large]] * (num_bins - large) > rest:
        rest -= work[order[large]]
        large += 1
    if num_ranks == 1 or not large:
        return [], sorted(range(len(rows)), key=lambda i: -rows[i])
    bins: Bins = [[i] for i in order[:large]] + [[] for _ in range(-large % num_ranks)]
    left = sorted(order[large:], key=lambda i: (rows[i], work[i]))
    lengths, works = [rows[i] for i in left], [work[i] for i in left]
    for number, content in enumerate(bins):
        room = cap - sum(rows[i] for i in content)
        slack = work[order[number // num_ranks * num_ranks]] - sum(work[i] for i in content)
        while (place := min(bisect_right(lengths, room), bisect_right(works, slack)) - 1) >= 0:
            room, slack = room - lengths.pop(place), slack - works.pop(place)
            content.append(left.pop(place))
    return bins, left[::-1]


def _to_the_least_work(
    order: Sequence[int], rows: Sequence[int], work: Sequence[float], cap: int, num_bins: int
) -> Bins | None:
    """Each unit to the micro-batch with the least work that has room; None if one has nowhere to go.

    Those without room wait until units are small enough for them.
    """
    bins: Bins = [[] for _ in range(num_bins)]
    room = [cap] * num_bins
    by_work = [(0.0, number) for number in range(num_bins)]
    waiting: list[tuple[int, float, int]] = []
    for i in order:
        while waiting and -waiting[0][0] >= rows[i]:
            _, held, number = heapq.heappop(waiting)
            heapq.heappush(by_work, (held, number))
        while by_work and room[by_work[0][1]] < rows[i]:
            held, number = heapq.heappop(by_work)
            heapq.heappush(waiting, (-room[number], held, number))
        if not by_work:
            return None
        held, number = by_work[0]
        bins[number].append(i)
        room[number] -= rows[i]
        heapq.heapreplace(by_work, (held + work[i], number))
    return bins


def _best_fit(order: Sequence[int], rows: Sequence[int], cap: int, num_bins: int) -> Bins | None:
    """Each unit to the micro-batch whose room it fills best; None if one has nowhere to go."""
    bins: Bins = [[] for _ in range(num_bins)]
    rooms = [(cap, number) for number in range(num_bins)]
    for i in order:
        place = bisect_left(rooms, (rows[i], -1))
        if place == len(rooms):
            return None
        room, number = rooms.pop(place)
        bins[number].append(i)
        insort(rooms, (room - rows[i], number))
    return bins


def deal(bins: Bins, sizes: Sizes, num_ranks: int) -> list[Bins]:
    """The micro-batches of each rank. Those of like work are a round; the largest of them goes to the rank that has
    least so far. Then units are moved from the busiest rank as long as no round gets longer by that."""
    work = [float(sizes.work[content].sum()) for content in bins]
    order = sorted(range(len(bins)), key=lambda number: -work[number])
    ranks: list[Bins] = [[] for _ in range(num_ranks)]
    held = [0.0] * num_ranks
    for first in range(0, len(order), num_ranks):
        emptiest_first = sorted(range(num_ranks), key=lambda rank: held[rank])
        for rank, number in zip(emptiest_first, order[first : first + num_ranks], strict=True):
            ranks[rank].append(bins[number])
            held[rank] += work[number]
    table = _Table(ranks, sizes)
    for _ in range(_MOST_MOVES):
        if not table.move():
            break
    return ranks


class _Table:
    """Work and rows of every rank's micro-batches, [ranks, rounds], while units are moved."""

    def __init__(self, ranks: list[Bins], sizes: Sizes) -> None:
        self.ranks, self.sizes = ranks, sizes
        self.work = np.asarray([[sizes.work[content].sum() for content in of_rank] for of_rank in ranks])
        self.rows = np.asarray([[sizes.rows[content].sum() for content in of_rank] for of_rank in ranks])

    def move(self) -> bool:
        """A unit of the busiest rank to one of the others, or for a smaller one there: the best of what is compared.
        False if all are even, or nothing helps."""
        of_rank = self.work.sum(axis=1)
        busiest = int(of_rank.argmax())
        if of_rank[busiest] <= EVEN * of_rank.mean():
            return False
        for rank in of_rank.argsort(kind="stable")[:_LIGHTEST].tolist():
            if self._move(busiest, rank, float(of_rank[busiest] - of_rank[rank])):
                return True
        return False

    def _move(self, giver: int, taker: int, gap: float) -> bool:
        units, rounds, work, rows = self._units(giver, ())
        others, other_rounds, other_work, other_rows = self._units(taker, range(self.work.shape[1]))
        less_work, less_rows = work[:, None] - other_work, rows[:, None] - other_rows
        room_there, room_here = (self.sizes.cap - self.rows[rank] for rank in (taker, giver))
        under = (self.work.max(axis=0) - self.work[taker])[other_rounds]
        helps = (less_work > 0) & (less_work < gap) & (less_work <= under)
        fits = (less_rows <= room_there[other_rounds]) & (-less_rows <= room_here[rounds][:, None])
        gain = np.where(helps & fits, np.minimum(less_work, gap - less_work), 0.0)
        given, taken = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[given, taken] <= 1e-3 * gap:
            return False
        here, there = int(rounds[given]), int(other_rounds[taken])
        self._exchange(giver, here, int(units[given]), taker, there, int(others[taken]))
        change = np.asarray([less_work[given, taken], less_rows[given, taken]])
        for table, amount in zip((self.work, self.rows), change, strict=True):
            table[giver, here] -= amount
            table[taker, there] += amount
        return True

    def _exchange(self, giver: int, here: int, unit: int, taker: int, there: int, other: int) -> None:
        self.ranks[giver][here].remove(unit)
        self.ranks[taker][there].append(unit)
        if other >= 0:
            self.ranks[taker][there].remove(other)
            self.ranks[giver][here].append(other)

    def _units(self, rank: int, empty: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Numbers, rounds, work and rows of some units of a rank, and of nothing, -1, in the rounds `empty`."""
        pairs = [(unit, number) for number, content in enumerate(self.ranks[rank]) for unit in content]
        pairs = pairs[:: max(1, len(pairs) // _MOST_COMPARED)] + [(-1, number) for number in empty]
        units, rounds = np.asarray(pairs, dtype=np.int64).T
        work, rows = (np.where(units < 0, 0, values[units]) for values in (self.sizes.work, self.sizes.rows))
        return units, rounds, work, rows
