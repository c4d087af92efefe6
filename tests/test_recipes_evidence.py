"""The lines of recipes that are commented because the evidence for them is the papers' and not ours: IcePop, and
replay of routing. Whoever takes the mark away gets a run that composes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime.compose.compose import Composed, examine
from slime.config.choices import Importance
from slime.plan.report import report
from slime.plugins import load
from tests.site import Site

FILES = {
    file.stem: file.read_text()
    for file in sorted(Path(__file__).parents[1].glob("plugins/models/*/*/conf/recipe/*.yaml"))
}
LINE = re.compile(r"^( *)# ((?:algo: \{importance|importance: |routing_replay: ).*)$", re.MULTILINE)
ICEPOP, REPLAY = "importance: mask", "routing_replay: true"
BESIDE = re.compile(r"needs (\S+=\S+)|with (importance_high): (\S+)")
"""What such a line says is to be set with it."""
COMMENTED = [(name, line) for name, text in FILES.items() for _, line in LINE.findall(text)]


def tried(site: Site, name: str, chosen: str) -> Composed:
    """The plan of a recipe without the mark before the lines that have the words `chosen`."""
    model, _, cluster = name.partition("@")
    bare = LINE.sub(lambda found: found[1] + found[2] if chosen in found[2] else found[0], FILES[name])
    assert bare.count(f"# {chosen}") == 0
    hook = '@hookimpl\ndef slime_config_paths():\n    return ["pkg://slime_tried.conf"]\n'
    site.add("slime-tried", hook, conf={"recipe/tried.yaml": bare})
    said = [match for _, line in LINE.findall(FILES[name]) if chosen in line for match in BESIDE.findall(line)]
    beside = [word or f"algo.{key}={value}" for word, key, value in said]
    return examine([f"+model={model}", f"+cluster={cluster}", "recipe=tried", *beside])


def test_the_recipes_of_mixtures_of_experts_have_such_lines() -> None:
    assert len(COMMENTED) >= 18
    assert {ICEPOP in line or REPLAY in line for _, line in COMMENTED} == {True}
    by_recipe = {name: [line for of, line in COMMENTED if of == name] for name, _ in COMMENTED}
    assert {len(lines) for lines in by_recipe.values()} == {2}


@pytest.mark.parametrize("name", [name for name, line in COMMENTED if ICEPOP in line])
def test_icepop_composes_and_plans(site: Site, name: str) -> None:
    composed = tried(site, name, ICEPOP)
    assert composed.problems == []
    algo = composed.cfg.algo
    assert (algo.importance, algo.importance_low, algo.importance_high) == (Importance.mask, 0.5, 5)
    planned = report(composed, load())
    assert re.search(r"^importance +all tokens, .* masked outside \[0\.5, 5\]$", planned, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name, line in COMMENTED if REPLAY in line])
def test_replay_composes_and_plans(site: Site, name: str) -> None:
    composed = tried(site, name, REPLAY)
    assert composed.problems == []
    assert composed.cfg.train.routing_replay
    assert re.search(r"^replay +routed_experts: .* bytes a token", report(composed, load()), re.MULTILINE)
