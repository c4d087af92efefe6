"""Rules of engines, whatever is installed of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from slime import plugins
from slime.compose.compose import examine
from slime.errors import SlimeError
from slime.models.blocks import BuildingBlock
from slime.plugins import Plugins
from slime.registry import Contribution
from slime.topology.topology import Topology

WORDS = ["+model=glm4-9b", "+cluster=h100x8"]


def even_heads(topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock]) -> Iterator[SlimeError]:
    """Of a third party: an engine that takes at most a rank for every eight heads."""
    for group in topology.groups:
        if group.tp > model["num_attention_heads"] // 8:
            yield SlimeError(f"has {group.tp} ranks", where=group.home_of("tp_size"), todo="Use fewer.")


def installed(monkeypatch: pytest.MonkeyPatch, *contributions: Contribution) -> None:
    """What is installed, with these in the place of what `slime-sglang` contributes."""
    everything = plugins.load().installed
    assert "sglang-rules" in {plugin.name for plugin in everything}
    found = Plugins(
        [replace(each, contributions=[*contributions]) if each.name == "sglang-rules" else each for each in everything]
    )
    monkeypatch.setattr(plugins, "load", lambda: found)


def test_every_installed_check_is_asked_of_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Contribution("engine_check", "acme", even_heads, "slime-acme", "1.0"))
    assert examine(WORDS).problems == []
    [problem, *_] = examine([*WORDS, "rollout.engines.default.devices_per_engine=8"]).problems
    assert str(problem) == "rollout.sglang.tp_size: has 8 ranks. Set rollout.engines.default.devices_per_engine=4."


def test_a_plan_without_any_says_so_and_who_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> list[str]:
        return [str(warning) for warning in examine(WORDS).warnings if "held against" in str(warning)]

    assert said() == []
    installed(monkeypatch)
    [warning] = said()
    assert warning.startswith("rollout.sglang: was held against no rules of SGLang. Run: pip install slime-sglang")
