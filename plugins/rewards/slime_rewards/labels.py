"""Labels that a reward is going to judge by, for those that look at them before a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from slime.algo.stages import reinforces
from slime.compose.data_files import FIRST_ROWS
from slime.config.paths import resolve_rows
from slime.config.schema import AlgoConfig, DataConfig, EvalConfig
from slime.data.rows import Row, first_rows
from slime.errors import SlimeError


class JudgedSet(NamedTuple):
    """A prompt set and its reward.

    Attributes:
        key: that names its files.
        stated_by: the key that says which column is the label.
        label_key: that column; None leaves labels out.
    """

    key: str
    path: str
    stated_by: str
    label_key: str | None
    reward: str

    def first_labels(self) -> Iterator[tuple[Any, Row]]:
        """Of its first rows; none where slime itself tells that the files or the column are not there."""
        if self.label_key is None:
            return
        try:
            for row in first_rows(resolve_rows(self.path), FIRST_ROWS):
                yield row[self.label_key], row
        except SlimeError:
            return


def judged_sets(algo: AlgoConfig, data: DataConfig, evaluation: EvalConfig, reward: str) -> Iterator[JudgedSet]:
    """The prompt sets that a run has judged, by `reward` unless they have their own."""
    learns, own = reinforces(algo), data.label_key
    sets = {**(data.named() if learns else {}), **evaluation.named()}
    judged = [("data", data.path if learns else None, own, reward), ("eval", evaluation.path, own, reward)]
    judged += [(home, each.path, each.label_key, each.reward or reward) for home, each in sets.items()]
    for home, path, label_key, by in judged:
        if path is not None:
            stated_by = "data.label_key" if own is None else f"{home}.label_key"
            yield JudgedSet(f"{home}.path", path, stated_by, label_key, by)
