"""What docs/large-recipes.md says of downloads, disk and seconds is what plans of its words say."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import pytest

from slime.compose.compose import Composed, examine
from slime.files import human_bytes
from slime.plan.document import document
from slime.plugins import load

PAGE = (Path(__file__).parents[1] / "docs/large-recipes.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow
RECIPES = ["glm5.2@h100x256", "deepseek-r1@h100x128", "glm4.5@h100x64"]


def rows(heading: str) -> dict[str, list[str]]:
    """Of the table that begins so: by its first cell, the others."""
    _, _, after = PAGE.partition(f"| {heading} |")
    lines = after.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {first.strip("` "): rest for first, *rest in cells}


@functools.cache
def plan(recipe: str, *more: str) -> Composed:
    model, _, cluster = recipe.partition("@")
    composed = examine([f"+model={model}", f"+cluster={cluster}", *more])
    assert composed.problems == []
    return composed


@pytest.mark.parametrize("recipe", RECIPES)
def test_downloads_and_disk_are_the_plans(recipe: str) -> None:
    composed = plan(recipe)
    disk = document(composed, load())["disk"]
    has_two_folders = composed.cfg.model.path != composed.cfg.model.source  # as published, and as it is trained
    weights = disk["download"] + (disk["export"] if has_two_folders else 0)
    written = disk["checkpoint"] * disk["num_checkpoints"] + disk["export"] + disk["samples"]
    assert disk["num_checkpoints"] == 3
    sizes = [human_bytes(size) for size in (disk["download"], weights, disk["checkpoint"], written)]
    assert rows("recipe | hosts of 8 H100s")[recipe] == [str(composed.cfg.cluster.num_nodes), *sizes]


def seconds(composed: Composed) -> str:
    return f"{document(composed, load())['step_seconds']['total']:,.0f}"


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_runs_without_deepep_is_what_the_page_says(recipe: str) -> None:
    of_trainers, *_ = rows("recipe | what to add")["glm4.5@h100x64"]
    words, with_it, without = rows("recipe | what to add")[recipe]
    chosen = shlex.split(" ".join(re.findall("`([^`]*)`", words)))
    if words.startswith("the same"):
        chosen += shlex.split(of_trainers.strip("`"))
    composed = plan(recipe, *chosen)
    assert "deepep" not in str(composed.cfg.train.megatron) + str(composed.cfg.rollout)
    assert (seconds(plan(recipe)), seconds(composed)) == (with_it, without)
