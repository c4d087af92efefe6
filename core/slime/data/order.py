"""In which order the rows of a file are taken, over epochs and over a kill and a resume."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any


class EpochOrder:
    """An endless walk over `num_rows` rows, each epoch in an order of its own that only the seed decides.

    Args:
        num_rows: rows an epoch.
        seed: decides every epoch's order.
        shuffle: off keeps the file's order in every epoch.
    """

    def __init__(self, num_rows: int, seed: int, shuffle: bool) -> None:
        assert num_rows > 0, "an epoch has rows"
        self._num_rows, self._seed, self._shuffle = num_rows, seed, shuffle
        self._epoch = self._position = 0
        self._order = self._epoch_order()

    @property
    def num_taken(self) -> int:
        """Rows taken so far."""
        return self._epoch * self._num_rows + self._position

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next `count` pairs (epoch, row index)."""
        return [self._next() for _ in range(count)]

    def state_dict(self) -> dict[str, Any]:
        """Where the walk stands, as plain values."""
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._epoch_order()

    def _next(self) -> tuple[int, int]:
        if self._position == self._num_rows:
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._epoch_order()
        self._position += 1
        return self._epoch, self._order[self._position - 1]

    def _epoch_order(self) -> list[int]:
        order = list(range(self._num_rows))
        if self._shuffle:
            random.Random(f"{self._seed}/{self._epoch}").shuffle(order)
        return order
