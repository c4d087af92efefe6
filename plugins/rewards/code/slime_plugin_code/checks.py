"""Whether the labels of the prompts have tests: asked of the first rows, before a run."""

from __future__ import annotations

from collections.abc import Iterator

from slime.algo.stages import run_stages
from slime.compose.data_files import FIRST_ROWS
from slime.config.paths import resolve_rows
from slime.config.schema import SlimeConfig
from slime.data.rows import Row, first_rows
from slime.errors import SlimeError
from slime_plugin_code.labels import cases_of

NAME = "code"


def label_problems(cfg: SlimeConfig) -> Iterator[str]:
    """A sentence for each prompt set of which the reward could not judge a row."""
    learns, own = run_stages(cfg).reinforces, cfg.data.label_key
    sets = {**(cfg.data.named() if learns else {}), **cfg.eval.named()}
    judged = [("data", cfg.data.path if learns else None, own, cfg.reward.name)]
    judged += [("eval", cfg.eval.path, own, cfg.reward.name)]
    judged += [(home, each.path, each.label_key, each.reward or cfg.reward.name) for home, each in sets.items()]
    for home, path, label_key, reward in judged:
        if path is None or reward != NAME:
            continue
        if label_key is None:
            key = "data.label_key" if own is None else f"{home}.label_key"
            yield f"reward={NAME} runs the tests of a label: {key}=null leaves it out"
        else:
            yield from _of_rows(f"{home}.path", path, label_key)


def _of_rows(key: str, path: str, label_key: str) -> Iterator[str]:
    """The first row whose label has no tests."""
    for row in _rows(path):
        try:
            cases_of(row[label_key])
        except SlimeError:  # no such column, which slime tells itself
            return
        except ValueError as problem:
            yield f"{key}: '{label_key}' in {row.where} has no tests for reward={NAME}: {problem}"
            return


def _rows(path: str) -> list[Row]:
    try:
        return first_rows(resolve_rows(path), FIRST_ROWS)
    except SlimeError:  # not fetched yet, or damaged, which slime tells itself
        return []
