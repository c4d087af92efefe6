"""Micro-batches from sizes: never more than need be where that can be computed, nothing lost, and ranks alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slime.train.deal import Bins, deal
from slime.train.fill import Sizes, fewest, fill

ATTENTION = 24576


def sizes_of(rows: np.ndarray, cap: int) -> Sizes:
    return Sizes(rows, rows + rows**2 / ATTENTION, cap)


def least_by_trying(rows: list[int], cap: int) -> int:
    """Of a few units: the fewest bins, by every way to fill them."""
    best = len(rows)

    def place(number: int, rooms: list[int]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if number == len(rows):
            best = len(rooms)
            return
        for place_, room in enumerate(rooms):
            if room >= rows[number]:
                place(number + 1, [*rooms[:place_], room - rows[number], *rooms[place_ + 1 :]])
        place(number + 1, [*rooms, cap - rows[number]])

    place(0, [])
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_is_one_and_small_cases_meet_it_or_miss_it_by_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, cap = generator.integers(1, [21, 8, 30][seed % 3], 8), 30
    least, bound = least_by_trying(rows.tolist(), cap), fewest(rows, cap, 1)
    found = fill(sizes_of(rows, cap), 1, 1).num_bins
    assert bound <= least <= found <= least + 1


@pytest.mark.parametrize(
    ("rows", "cap", "bound"),
    [
        ([5000] * 2048, 32768, math.ceil(2048 / 6)),  # their tokens would fit 313
        ([1500] * 210 + [32768] * 5, 32768, 15),  # of the short ones 21 fit
        ([20] * 5 + [15] * 4, 30, 7),  # none of the first goes with one of the second, of which two fit
    ],
)
def test_the_bound_knows_what_cannot_stand_together(rows: list[int], cap: int, bound: int) -> None:
    assert fewest(np.asarray(rows), cap, 1) == bound == fill(sizes_of(np.asarray(rows), cap), 1, 1).num_bins
    assert fewest(np.asarray(rows), cap, 8) == -(-bound // 8) * 8


def work_of(ranks: list[Bins], sizes: Sizes) -> np.ndarray:
    """[ranks, rounds]"""
    return np.asarray([[sizes.work[content].sum() for content in of_rank] for of_rank in ranks])


@pytest.mark.parametrize(
    ("name", "count", "cap", "num_ranks", "work", "waiting"),
    [
        ("uniform", 8192, 32768, 64, 1.005, 1.02),
        ("lognormal", 8192, 32768, 64, 1.01, 1.01),
        ("lognormal", 2048, 32768, 64, 1.06, 1.06),  # no way below 1.048
        ("long tail", 8192, 65536, 64, 1.01, 1.015),
        ("long tail", 8192, 32768, 64, 1.01, 1.03),  # no way below 1.011; 98 % full
        ("two kinds", 8192, 65536, 64, 1.01, 1.03),
        ("long tail", 2048, 32768, 8, 1.01, 1.01),
    ],
)
def test_ranks_have_like_work_in_every_round(
    name: str, count: int, cap: int, num_ranks: int, work: float, waiting: float
) -> None:
    generator = np.random.default_rng(7)
    drawn = {
        "uniform": lambda: generator.integers(100, 10_000, count),
        "lognormal": lambda: generator.lognormal(math.log(3000), 1.0, count),
        "long tail": lambda: 500 * (1 + generator.pareto(1.1, count)),
        "two kinds": lambda: np.where(generator.random(count) < 0.9, 1500, 32768),
    }
    sizes = sizes_of(np.clip(drawn[name](), 220, 32768).astype(int), cap)
    filled = fill(sizes, num_ranks, num_ranks)
    assert filled.num_bins == math.ceil(1.001 * fewest(sizes.rows, cap, 1) / num_ranks) * num_ranks
    ranks = deal(filled, sizes, num_ranks)
    assert sorted(i for of_rank in ranks for content in of_rank for i in content) == [*range(count)]
    assert max(int(sizes.rows[content].sum()) for of_rank in ranks for content in of_rank) <= cap
    table = work_of(ranks, sizes)
    assert table.sum(1).max() <= work * table.sum(1).mean()
    assert table.max(0).sum() <= waiting * table.sum(1).mean()


def test_a_rank_may_have_nothing_to_do() -> None:
    sizes = Sizes(np.asarray([3]), np.asarray([3.0]), 10)
    assert fill(sizes, 4, 4).num_bins == 4
    assert [len(of_rank) for of_rank in deal(fill(sizes, 4, 4), sizes, 4)] == [1, 1, 1, 1]
