"""A check before a run: can the rewards compare with the labels of the first rows?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slime.data.rows import kind_of
from slime_rewards.labels import JudgedSet
from slime_rewards.math.answers import label_text

REWARDS = ("arithmetic", "dapo", "deepscaler", "math")


def label_problems(sets: Iterable[JudgedSet]) -> Iterator[str]:
    """A sentence for each prompt set whose labels no reward here can compare with."""
    unlabelled = dict[str, str]()
    for judged in (each for each in sets if each.reward in REWARDS):
        if judged.label_key is None:
            unlabelled[judged.stated_by] = judged.reward
        else:
            yield from _of_rows(judged)
    for key, reward in unlabelled.items():
        yield f"reward={reward} compares with a label: {key}=null leaves it out"


def _of_rows(judged: JudgedSet) -> Iterator[str]:
    for label, row in judged.first_labels():
        if label is not None and label_text(label) is None:
            what = f"'{judged.label_key}' is {kind_of(label)} in {row.where}"
            yield f"{judged.key}: {what}, and reward={judged.reward} compares with text or a finite number"
            return
