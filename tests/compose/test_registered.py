"""What a plugin registers is chosen by its name: an entry point and a hook are enough, no file is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from slime import command, plugins
from slime.compose.compose import compose, examine
from slime.compose.groups import scan
from slime.errors import SlimeError
from slime.verbs.plugins import listing
from slime_testing.plugins import RewardCase, check_reward
from tests.site import Site

ROOT = Path(__file__).parents[2]
LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
PLUGIN = """
from dataclasses import dataclass, field
from typing import Literal

@dataclass
class Strict:
    mode: Literal["strict", "lenient"] = "strict"
    level: Literal[1, 2] | None = None
    words: list[str] = field(default_factory=list)

    def score(self, sample): ...

@dataclass
class Choosy:
    least: float = 0.0

    def decide(self, group): ...

@dataclass
class Stack:
    most: int = 3

@dataclass
class Table:
    every: int = 1

@hookimpl
def slime_rewards(): return {"strictly": Strict}

@hookimpl
def slime_filters(): return {"choosy": Choosy}

@hookimpl
def slime_buffers(): return {"stack": Stack}

@hookimpl
def slime_trackers(): return {"table": Table}
"""
CHOSEN = ["reward=strictly", "filter=choosy", "rollout.over_sampling=2", "buffer=stack", "observe.trackers.table=true"]


@pytest.fixture
def bare(site: Site) -> Site:
    """A plugin without a single config file."""
    site.add("acme-bare", PLUGIN)
    return site


def test_readme_and_an_entry_point_are_enough(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    guide = (ROOT / "docs/writing-a-reward-plugin.md").read_text()
    (project,) = re.findall(r"`pyproject.toml`\n\n```toml\n(.*?)```", guide, re.S)
    site.add_project({"pyproject.toml": project, "slime_brevity/__init__.py": code})
    assert command.main(["plan", *LAPTOP, "reward=brevity", "reward.options.max_chars=50"]) == 0
    assert "brevity (slime-brevity 0.1.0)" in capsys.readouterr().out
    assert compose([*LAPTOP, "reward=brevity"]).reward.options == {"max_chars": 100}
    check_reward("brevity", [RewardCase("x" * 25, None, 0.5)], options={"max_chars": 50})  # in worker processes


def test_all_kinds_are_chosen_by_name(bare: Site) -> None:
    cfg = compose([*LAPTOP, *CHOSEN])
    assert (cfg.reward.name, cfg.filter.name, cfg.buffer.name) == ("strictly", "choosy", "stack")
    assert cfg.reward.options == {"mode": "strict", "level": None, "words": []}
    assert cfg.filter.then == {}
    assert (cfg.filter.options, cfg.buffer.options) == ({"least": 0.0}, {"most": 3})
    assert cfg.observe.trackers["table"] == {"every": 1}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("reward.options.mode=lenient", ""),
        ("reward.options.level=2", ""),
        ("reward.options.level=null", ""),
        (
            "reward.options.mode=strikt",
            "must be strict | lenient, got 'strikt'. Did you mean 'strict'?",
        ),
        (
            "reward.options.mode=5",
            "must be strict | lenient, got '5'. Choose one of: lenient, strict.",
        ),
        ("reward.options.level='2'", "reward.options.level: must be 1 | 2 or null, got '2'"),
        ("reward.options.words=3", "reward.options.words"),
        ("filter.options.leest=1", "filter.options.leest: filter 'choosy' has no such option. Did you mean 'least'?"),
        ("filter.then.none=true", ""),
        ("filter.then.none=false", ""),
        ("filter.then.dynamic-sampling.min_std=0.1", ""),
        ("filter.then.dynamic-sampling.min_sdt=0.1", "filter.then.dynamic-sampling.min_sdt: filter 'dynamic-sampling'"),
        ("filter.then.dynamic-samplin=true", "filter.then.dynamic-samplin: no filter named 'dynamic-samplin'"),
        ("filter.then.none=3", "filter.then.none: '3' is neither true, false nor options. Write filter.then.none=true"),
        ("buffer.options.most=many", "buffer.options.most: Value 'many'"),
        (
            "observe.trackers.table.evry=2",
            "tracker 'table' has no such option. Did you mean 'every'?",
        ),
        ("observe.trackers.table.every=often", "observe.trackers.table.every: Value 'often'"),
    ],
)
def test_a_dataclass_types_its_own_options(bare: Site, word: str, says: str) -> None:
    found = [str(problem) for problem in examine([*LAPTOP, *CHOSEN, word]).problems]
    assert len(found) == bool(says), found
    assert says in "".join(found)


def test_a_mistyped_name_gets_the_nearest_one(bare: Site) -> None:
    with pytest.raises(SlimeError, match=r"there is no reward=strictli. Did you mean 'reward=strictly'\?"):
        compose([*LAPTOP, "reward=strictli"])


def test_a_file_of_the_name_wins(site: Site) -> None:
    paths = "@hookimpl\ndef slime_config_paths(): return ['pkg://acme_bare.conf']"
    site.add("acme-bare", f"{PLUGIN}\n{paths}", conf={"reward/strictly.yaml": "name: strictly\nnum_workers: 3"})
    ConfigStore.instance().repo["reward"].pop("strictly.yaml", None)  # left by compositions before in this process
    cfg = compose([*LAPTOP, *CHOSEN])
    assert (cfg.reward.name, cfg.reward.num_workers, cfg.filter.name) == ("strictly", 3, "choosy")


def test_a_recipe_may_choose_what_has_no_file(site: Site) -> None:
    paths = "@hookimpl\ndef slime_config_paths(): return ['pkg://acme_bare.conf']"
    recipe = "# @package _global_\ndefaults: [{override /reward: strictly}, {override /filter: choosy}]"
    site.add("acme-bare", f"{PLUGIN}\n{paths}", conf={"recipe/glm4-tiny@local.yaml": recipe})
    cfg = compose(LAPTOP)
    assert (cfg.reward.name, cfg.filter.name) == ("strictly", "choosy")


def test_the_listing_knows_the_names(bare: Site) -> None:
    installed = plugins.load()
    shown = listing(installed, scan(installed)).partition("acme-bare")[2]
    assert [word in shown.split() for word in ("reward=strictly", "filter=choosy", "buffer=stack")] == [True] * 3
