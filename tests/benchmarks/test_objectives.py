"""The runs of benchmarks/objectives.py are accepted, and all compare like with like."""

from __future__ import annotations

from typing import Any

from slime.compose.compose import examine


def test_all_have_as_many_samples_and_differ_in_one_thing(program: Any) -> None:
    for way in program.WAYS:
        composed = examine(program.words(way, []))
        assert composed.problems == []
        cfg: Any = composed.cfg
        assert cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt == 512
        assert cfg.train.steps_per_rollout == 4
        assert (cfg.train.lora.rank is not None) == (way == "lora")
        assert cfg.train.optimizer["lr"] == (2e-4 if way == "lora" else 2e-5)
        assert composed.topology is not None
        assert not composed.topology.takes_turns


def test_arguments_replace_words(program: Any) -> None:
    words = program.words("ppo", ["run.num_steps=3", "+cluster=h200x1"])
    assert [word for word in words if word.startswith(("run.num_steps", "+cluster"))] == [
        "run.num_steps=3",
        "+cluster=h200x1",
    ]
