"""Batches, lengths and evaluation of the shipped recipes are those of their users."""

from __future__ import annotations

from typing import Any

import pytest

from slime.config.keys import value_of
from slime.topology.topology import read_topology
from tests.test_recipes import plan


@pytest.mark.parametrize(
    ("recipe", "rollout", "expected"),
    [
        ("glm5.2@h100x256", (8, 8, 65536), {"rollout.fp8": "block"}),
        ("glm5.1@h100x256", (8, 8, 32768), {"rollout.fp8": "block"}),
        ("glm5@h100x256", (8, 8, 32768), {"rollout.fp8": "block"}),
        ("deepseek-r1@h100x128", (128, 8, 32768), {"rollout.fp8": "block", "rollout.max_requests_per_engine": 1024}),
        ("glm4.5@h100x64", (128, 8, 32768), {"rollout.fp8": None, "rollout.over_sampling": 2.0}),
        ("glm4.5-fp8@h100x64", (128, 8, 32768), {"rollout.fp8": "block"}),
        ("glm4.7-flash@h100x8", (32, 8, 8192), {"rollout.fp8": None}),
        ("glm4.7-flash@h100x16", (128, 8, 32768), {"train.max_tokens_per_micro_batch": 32768}),
        ("glm4.7-flash@h100x24", (96, 8, 32768), {"train.max_tokens_per_micro_batch": 32768}),
        ("glm4-9b@h100x8", (32, 8, 8192), {"rollout.sampling.temperature": 0.8}),
        ("glm4-9b@h100x8-split", (32, 8, 8192), {"rollout.sampling.temperature": 0.8}),
        ("qwen3-4b@h100x8", (32, 8, 8192), {}),
        ("qwen3-30b-a3b@h100x8", (32, 8, 8192), {}),
        ("qwen3-235b-a22b@h100x128-split", (8, 8, 8192), {}),
        ("mimo-7b-rl@h100x8", (32, 8, 8192), {"train.mtp_loss_scale": 0.2}),
    ],
)
def test_batches_and_precision(recipe: str, rollout: tuple[int, int, int], expected: dict[str, Any]) -> None:
    """Prompts a step, samples a prompt, tokens of a response; then what else its users set."""
    cfg = plan(recipe).cfg
    found = (cfg.rollout.prompts_per_step, cfg.rollout.samples_per_prompt, cfg.rollout.sampling.max_response_tokens)
    assert found == rollout
    assert {key: value_of(cfg, key) for key in expected} == expected
    assert (cfg.run.num_steps, cfg.train.checkpoint.interval) == (3000, 20)


@pytest.mark.parametrize(
    ("recipe", "numbers"),
    [
        ("deepseek-r1@h100x128", (20, 8, 32768, 1.0)),
        ("glm4.5@h100x64", (20, 8, 32768, 1.0)),
        ("glm4.5-fp8@h100x64", (20, 8, 32768, 1.0)),
        ("glm4.7-flash@h100x8", (20, 16, 16384, 1.0)),
        ("glm4.7-flash@h100x16", (20, 2, 32768, 0.95)),
        ("glm4.7-flash@h100x24", (20, 2, 32768, 0.95)),
        ("glm4-9b@h100x8", (5, 16, 16384, 0.7)),
        ("glm4-9b@h100x8-split", (5, 16, 16384, 0.7)),
        ("qwen3-4b@h100x8", (20, 16, 16384, 1.0)),
        ("qwen3-30b-a3b@h100x8", (20, 16, 16384, 1.0)),
        ("mimo-7b-rl@h100x8", (20, 1, 8192, 1.0)),
    ],
)
def test_evaluation(recipe: str, numbers: tuple[int, int, int, float]) -> None:
    """Steps between two, samples a prompt, tokens of a response, nucleus sampling mass."""
    found = plan(recipe).cfg.eval
    assert found.path == "zhuzilin/aime-2024/aime-2024.jsonl"
    sampling = found.sampling
    assert (found.interval, found.samples_per_prompt, sampling.max_response_tokens, sampling.top_p) == numbers


@pytest.mark.parametrize(
    ("recipe", "tokens"),
    [
        ("glm5.2@h100x256", 65536),
        ("glm5.1@h100x256", 32768),
        ("glm5@h100x256", 32768),
        ("qwen3-235b-a22b@h100x128-split", 16384),
    ],
)
def test_evaluation_that_the_users_leave_out_may_be_switched_on(recipe: str, tokens: int) -> None:
    assert plan(recipe).cfg.eval.path is None
    composed = plan(recipe, "eval.path=zhuzilin/aime-2024/aime-2024.jsonl")
    assert composed.problems == []
    assert composed.cfg.eval.sampling.max_response_tokens == tokens


def test_drafts_of_the_flash_model_can_be_switched_off() -> None:
    assert plan("glm4.7-flash@h100x8", "rollout.sglang.speculative_algorithm=null").problems == []


@pytest.mark.parametrize(
    ("recipe", "ranks", "engines", "cpu_adam"),
    [
        ("qwen3-4b@h100x1", 1, 1, True),
        ("qwen3-4b@h200x1", 1, 1, False),
        ("glm4-9b@h200x1", 1, 1, True),
        ("glm4-9b@h200x2", 2, 2, False),
        ("glm4-9b@h200x2-split", 1, 1, True),
        ("glm4-9b@h200x4", 4, 4, False),
        ("glm4-9b@h200x4-split", 2, 2, False),
    ],
)
def test_published_models_on_few_gpus(recipe: str, ranks: int, engines: int, cpu_adam: bool) -> None:
    """With the data, the reward and the lengths of their recipe for eight."""
    cfg, eight = plan(recipe).cfg, plan(f"{recipe.partition('@')[0]}@h100x8").cfg
    assert cfg.cluster.num_trainers == ranks
    assert len(read_topology(cfg).engines) == engines
    assert bool(cfg.train.optimizer.get("optimizer_cpu_offload")) == cpu_adam
    assert (cfg.data, cfg.reward, cfg.algo) == (eight.data, eight.reward, eight.algo)
    assert cfg.rollout.sampling == eight.rollout.sampling
    assert (cfg.eval, cfg.rollout.prompts_per_step) == (eight.eval, eight.rollout.prompts_per_step)
