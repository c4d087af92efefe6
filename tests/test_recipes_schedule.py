"""What the shipped recipes leave out may be switched on, and a recipe for few GPUs is the one for eight otherwise."""

from __future__ import annotations

import pytest

from slime.topology.topology import read_topology
from tests.test_recipes import plan


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
