"""What each recipe of a large model learns by is what its guide or script says (`recipes.toml`); where that has changed
since, the page for people from other programs says so."""

from __future__ import annotations

import enum
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from slime.config.keys import value_of
from tests.test_recipes import RECIPES, plan

TABLE: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text())
SHARED = TABLE.pop("shared")
PAGE = (Path(__file__).parents[1] / "docs/coming-from.md").read_text()
STARTERS = ("smollm2-", "llama3", "qwen2.5-")
"""Models whose recipes are of a first task, and nobody's large run."""
ABOUT = ("source", "date")
DIFFERING = [
    (recipe, key) for recipe, entry in TABLE.items() for key, value in entry.items() if isinstance(value, dict)
]


def test_every_large_recipe_is_in_the_table() -> None:
    assert {*TABLE} == {name for name in RECIPES if "@h100" in name and not name.startswith(STARTERS)}
    assert [name for name, entry in TABLE.items() if not (entry["source"] and len(entry["date"]) == 10)] == []


def said(recipe: str, key: str) -> Any:
    """As the table writes it."""
    value = value_of(plan(recipe).cfg, key)
    if key == "algo.kl_coef":
        return value or 0.0  # 0 keeps a reference model to measure with, and nothing else is different
    return "none" if value is None else value.name if isinstance(value, enum.Enum) else value


@pytest.mark.parametrize("recipe", TABLE)
def test_the_recipe_has_the_values_of_its_entry(recipe: str) -> None:
    wanted = {key: value for key, value in {**SHARED, **TABLE[recipe]}.items() if key not in ABOUT}
    wanted = {key: value["here"] if isinstance(value, dict) else value for key, value in wanted.items()}
    assert {key: said(recipe, key) for key in wanted} == wanted


def test_what_differs_today_says_both_values_and_why() -> None:
    for recipe, key in DIFFERING:
        entry = TABLE[recipe][key]
        assert entry.keys() == {"here", "today", "why"}, (recipe, key)
        assert entry["here"] != entry["today"], (recipe, key)
        assert len(entry["why"].split()) > 5, (recipe, key)


def rows() -> list[str]:
    """Of the page's table, one for each key and pair of values."""
    models = defaultdict[tuple[str, str, Any, Any], list[str]](list)
    for recipe, key in DIFFERING:
        entry = TABLE[recipe][key]
        models[key, entry["why"], entry["here"], entry["today"]].append(recipe)
    return [
        f"| `{key}` | {here} | {today} | {', '.join(f'`{recipe}`' for recipe in recipes)} | {why} |"
        for (key, why, here, today), recipes in models.items()
    ]


def test_the_page_has_a_row_of_each_difference() -> None:
    assert DIFFERING
    assert [row for row in rows() if row not in PAGE.splitlines()] == []
    head = PAGE.index("| key | here | there, today | recipes | why |")
    assert PAGE[head:].partition("\n\n")[0].count("\n") == len(rows()) + 1, "the page has a row too many"
