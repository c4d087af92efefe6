"""Which rank gets which micro-batches, so that all have as much work, at every micro-batch too. No torch.

Nothing depends on chance.
"""

from __future__ import annotations

import numpy as np

from slime.train.fill import EVEN, Filled, Sizes

Bins = list[list[int]]
"""Numbers of units by micro-batch."""

_Units = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Numbers, rounds, work and rows."""

_MOST_TRIED, _MOST_COMPARED = 128, 32
"""Moves of units between ranks that are looked for; units of a rank that are compared with those of another."""


def deal(filled: Filled, sizes: Sizes, num_ranks: int) -> list[Bins]:
    """The micro-batches of each rank. Those of like work are a round; the largest of them goes to the rank that has
    least so far. Then units are moved from the busiest rank as long as no round gets longer by that."""
    work = filled.sum(sizes.work)
    rounds = np.argsort(-work, kind="stable").reshape(-1, num_ranks)
    held, bins = np.zeros(num_ranks), np.empty_like(rounds)
    for number, of_round in enumerate(rounds):
        emptiest_first = np.argsort(held, kind="stable")
        bins[number, emptiest_first] = of_round
        held[emptiest_first] += work[of_round]
    table = _Table(filled, bins.T.copy(), sizes)
    table.even_out()
    order = np.lexsort((-sizes.rows, table.place)).tolist()
    ends = np.cumsum(np.bincount(table.place, minlength=filled.num_bins)).tolist()
    contents = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [[contents[number] for number in of_rank] for of_rank in table.bins.tolist()]


class _Table:
    """Work and rows of every rank's micro-batches, [ranks, rounds], while units are moved.

    Args:
        bins: their numbers, [ranks, rounds].
    """

    def __init__(self, filled: Filled, bins: np.ndarray, sizes: Sizes) -> None:
        self.place, self.bins, self.sizes = filled.place.copy(), bins, sizes
        self.work, self.rows = (filled.sum(values)[bins] for values in (sizes.work, sizes.rows))

    def even_out(self) -> None:
        """The busiest rank trades micro-batches of a round with others, then a unit for a smaller one or for nothing,
        each time the best of what is compared; until ranks are even, or nothing helps, or enough was tried."""
        tried = 0
        while tried < _MOST_TRIED:
            of_rank = self.work.sum(axis=1)
            busiest = int(of_rank.argmax())
            if of_rank[busiest] <= EVEN * of_rank.mean():
                break
            if self._trade(busiest, of_rank):
                continue
            given, under = self._units(busiest, 0), self.work.max(axis=0) - self.work
            for rank in of_rank.argsort(kind="stable")[: _MOST_TRIED - tried].tolist():
                tried += 1
                if self._move(busiest, rank, given, under[rank], float(of_rank[busiest] - of_rank[rank])):
                    break
            else:
                break

    def _trade(self, busiest: int, of_rank: np.ndarray) -> bool:
        less = self.work[busiest] - self.work
        gain = np.minimum(less, (of_rank[busiest] - of_rank)[:, None] - less)
        rank, number = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[rank, number] <= 1e-3 * of_rank.mean():
            return False
        both = np.asarray([busiest, rank])
        for table in (self.bins, self.work, self.rows):
            table[both, number] = table[both[::-1], number]
        return True

    def _move(self, giver: int, taker: int, given: _Units, under: np.ndarray, gap: float) -> bool:
        """`under` [rounds]: how much work the taker's micro-batches are from the longest of their rounds."""
        units, rounds, work, rows = given
        others, other_rounds, other_work, other_rows = self._units(taker, self.work.shape[1])
        less_work, less_rows = work[:, None] - other_work, rows[:, None] - other_rows
        room_there, room_here = (self.sizes.cap - self.rows[rank] for rank in (taker, giver))
        helps = (less_work > 0) & (less_work < gap) & (less_work <= under[other_rounds])
        fits = (less_rows <= room_there[other_rounds]) & (-less_rows <= room_here[rounds][:, None])
        gain = np.where(helps & fits, np.minimum(less_work, gap - less_work), 0.0)
        one, taken = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[one, taken] <= 1e-2 * gap:
            return False
        here, there = rounds[one], other_rounds[taken]
        self.place[units[one]] = self.bins[taker, there]
        if others[taken] >= 0:
            self.place[others[taken]] = self.bins[giver, here]
        change = np.asarray([less_work[one, taken], less_rows[one, taken]])
        for table, amount in zip((self.work, self.rows), change, strict=True):
            table[giver, here] -= amount
            table[taker, there] += amount
        return True

    def _units(self, rank: int, num_empty: int) -> _Units:
        """Some of a rank, and nothing, -1, in the first rounds."""
        round_of = np.full(self.bins.size, -1)
        round_of[self.bins[rank]] = np.arange(self.bins.shape[1])
        rounds = round_of[self.place]
        units = np.flatnonzero(rounds >= 0)
        units = units[np.argsort(rounds[units], kind="stable")][:: -(-len(units) // _MOST_COMPARED) or 1]
        nothing = np.full(num_empty, -1)
        rounds = np.concatenate([rounds[units], np.arange(num_empty)])
        work, rows = np.zeros((2, len(rounds)))
        work[: len(units)], rows[: len(units)] = self.sizes.work[units], self.sizes.rows[units]
        return np.concatenate([units, nothing]), rounds, work, rows
