"""A check before a run: can the rewards compare with the labels of the first rows?"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slime.config.schema import SlimeConfig
from slime.data.rows import kind_of
from slime_rewards.labels import JudgedSet, judged_sets
from slime_rewards.math.answers import label_text


def label_problems(cfg: SlimeConfig, rewards: Collection[str]) -> Iterator[str]:
    """A sentence for each prompt set whose labels no reward here can compare with.

    Args:
        rewards: names of those that compare with a label.
    """
    unlabelled = dict[str, str]()
    for judged in judged_sets(cfg, rewards):
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
