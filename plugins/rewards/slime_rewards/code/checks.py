"""Whether the labels of the prompts have tests: asked of the first rows, before a run."""

from __future__ import annotations

from collections.abc import Iterator

from slime.compose.labels import JudgedSet, judged_sets
from slime.config.schema import SlimeConfig
from slime_rewards.code.labels import cases_of

NAME = "code"


def label_problems(cfg: SlimeConfig) -> Iterator[str]:
    """A sentence for each prompt set of which the reward could not judge a row."""
    for judged in judged_sets(cfg, [NAME]):
        if judged.label_key is None:
            yield f"reward={NAME} runs the tests of a label: {judged.stated_by}=null leaves it out"
        else:
            yield from _of_rows(judged)


def _of_rows(judged: JudgedSet) -> Iterator[str]:
    """The first row whose label has no tests."""
    for label, row in judged.first_labels():
        try:
            cases_of(label)
        except ValueError as problem:
            yield f"{judged.key}: '{judged.label_key}' in {row.where} has no tests for reward={NAME}: {problem}"
            return
