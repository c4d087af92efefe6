"""The runs of benchmarks/objectives.py are accepted, and all compare like with like."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def objectives(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("objectives")


def test_all_have_as_many_samples_and_differ_in_one_thing(objectives: Any) -> None:
    for way in objectives.WAYS:
        composed = examine(objectives.words(way, []))
        assert composed.problems == []
        cfg: Any = composed.cfg
        assert cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt == 512
        assert cfg.train.steps_per_rollout == 4
        assert (cfg.train.lora.rank is not None) == (way == "lora")
        assert cfg.train.optimizer["lr"] == (2e-4 if way == "lora" else 2e-5)
        assert composed.topology is not None
        assert not composed.topology.takes_turns


def test_arguments_replace_words(objectives: Any) -> None:
    words = objectives.words("ppo", ["run.num_steps=3", "+cluster=h200x1"])
    assert [word for word in words if word.startswith(("run.num_steps", "+cluster"))] == [
        "run.num_steps=3",
        "+cluster=h200x1",
    ]
