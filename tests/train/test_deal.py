"""Micro-batches of ranks: as much work for each, and no round longer for that."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from slime.train.deal import Bins, deal
from slime.train.fill import Filled, Sizes


def work_of(ranks: list[Bins], sizes: Sizes) -> np.ndarray:
    """[ranks, rounds]"""
    return np.asarray([[sizes.work[content].sum() for content in of_rank] for of_rank in ranks])


def test_units_are_moved_to_a_rank_with_less_work() -> None:
    """Two rounds, each with one long unit: beside it stand short ones, which one rank has first and then gives away."""
    sizes = Sizes(np.asarray([9, 9, 1, 1, 1, 1]), np.asarray([90.0, 90.0, 10.0, 10.0, 10.0, 10.0]), 10)
    ranks = deal(Filled(np.asarray([0, 1, 1, 1, 1, 1]), 2), Sizes(sizes.rows, sizes.work, 13), 2)
    assert work_of(ranks, sizes).sum(1).tolist() == [110.0, 110.0]
    assert sorted(i for of_rank in ranks for content in of_rank for i in content) == [*range(6)]


def test_nothing_is_moved_where_a_round_would_get_longer() -> None:
    sizes = Sizes(np.asarray([5, 5, 5, 1]), np.asarray([50.0, 50.0, 50.0, 10.0]), 6)
    ranks = deal(Filled(np.asarray([0, 1, 2, 0]), 4), sizes, 2)
    heights = work_of(ranks, sizes).max(0).tolist()
    assert heights == [60.0, 50.0]
    assert all(first >= then for first, then in pairwise(heights))


def test_ranks_trade_micro_batches_of_a_round() -> None:
    """The largest goes to the rank with the least: 27 + 20 + 10, and 30 + 18 + 6. Another way is more even."""
    work = np.asarray([30.0, 27, 20, 18, 10, 6])
    rows = np.ones(6, np.int64)  # every unit fills its micro-batch
    ranks = deal(Filled(np.arange(6), 6), Sizes(rows, work, 1), 2)
    found = work_of(ranks, Sizes(rows, work, 1))
    assert found.max(0).tolist() == [30, 20, 10]
    assert sorted(found.sum(1)) == [55, 56]


def test_micro_batches_hold_the_longest_first() -> None:
    """Equal ones side by side, so that attention can run on a view."""
    rows = np.asarray([3, 5, 3, 5, 4])
    [[content]] = deal(Filled(np.zeros(5, np.int64), 1), Sizes(rows, rows.astype(float), 20), 1)
    assert rows[content].tolist() == [5, 5, 4, 3, 3]
