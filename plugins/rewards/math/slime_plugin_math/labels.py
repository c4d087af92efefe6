"""Whether the rewards can compare with the labels of the prompts: asked of the first rows, before a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slime.algo.stages import run_stages
from slime.compose.data_files import FIRST_ROWS
from slime.config.paths import resolve_rows
from slime.config.schema import SlimeConfig
from slime.data.rows import Row, first_rows, kind_of
from slime.errors import SlimeError
from slime_plugin_math.wanted import label_text


def label_problems(cfg: SlimeConfig, rewards: Collection[str]) -> Iterator[str]:
    """A sentence for each prompt set whose labels no reward here can compare with.

    Args:
        rewards: names of those that compare with a label.
    """
    learns, own = run_stages(cfg).reinforces, cfg.data.label_key
    sets = {**(cfg.data.named() if learns else {}), **cfg.eval.named()}
    judged = [("data", cfg.data.path if learns else None, own, cfg.reward.name)]
    judged += [("eval", cfg.eval.path, own, cfg.reward.name)]
    judged += [(home, each.path, each.label_key, each.reward or cfg.reward.name) for home, each in sets.items()]
    unlabelled = dict[str, str]()
    for home, path, label_key, reward in judged:
        if path is None or reward not in rewards:
            continue
        if label_key is None:
            unlabelled["data.label_key" if own is None else f"{home}.label_key"] = reward
        else:
            yield from _of_rows(f"{home}.path", path, label_key, reward)
    for key, reward in unlabelled.items():
        yield f"reward={reward} compares with a label: {key}=null leaves it out"


def _of_rows(key: str, path: str, label_key: str, reward: str) -> Iterator[str]:
    """The first row that cannot be compared with."""
    for row in _rows(path):
        try:
            label = row[label_key]
        except SlimeError:  # no such column, which slime tells itself
            return
        if label is not None and label_text(label) is None:
            what = f"'{label_key}' is {kind_of(label)} in {row.where}"
            yield f"{key}: {what}, and reward={reward} compares with text or a finite number"
            return


def _rows(path: str) -> list[Row]:
    try:
        return first_rows(resolve_rows(path), FIRST_ROWS)
    except SlimeError:  # not fetched yet, or damaged, which slime tells itself
        return []
