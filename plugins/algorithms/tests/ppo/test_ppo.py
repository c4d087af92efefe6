"""What a user types, and what is refused of it."""

from __future__ import annotations

import pytest

from slime.algo.stages import run_stages
from slime.compose.compose import compose, examine
from slime.plan.report import report
from slime.plugins import load
from slime_algorithms.ppo.gae import Gae

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
LORA = ["train.lora.rank=4"]


def test_one_sample_a_prompt_is_enough() -> None:
    cfg = compose([*LAPTOP, "algo=ppo", "rollout.samples_per_prompt=1", "algo.advantage_options.gae_lambda=0.9"])
    assert (cfg.algo.name, cfg.algo.advantage, cfg.algo.clip_high) == ("grpo", "gae", 0.2)
    supervised, reinforced = run_stages(cfg)
    assert supervised.estimator is None
    assert reinforced.estimator == Gae(gae_lambda=0.9)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["algo.critic.lr=1e-4"], "algo.critic.lr: does nothing without an estimator that has a critic, as algo=ppo."),
        (["algo=sft", "algo.critic.only_steps=3"], "algo.critic.only_steps: does nothing without algo=grpo."),
        (["algo=ppo", "algo.normalize_std=false"], "algo.normalize_std: does nothing without an estimator that reads"),
        (["algo=ppo", "algo.critic.offload=true"], "algo.critic.offload: does nothing without GPUs"),
        (["algo=ppo", "algo.critic.only_steps=40"], "algo.critic.only_steps: is 40, which leaves none of 40 steps"),
        (["algo=ppo", "algo.critic.lr_warmup_steps=40"], "algo.critic.lr_warmup_steps: is 40, which leaves none of 40"),
        (
            ["algo=ppo", "algo.critic.only_steps=30", "train.lr_warmup_steps=10"],
            "train.lr_warmup_steps: is 10, which leaves none of 10 steps at the full learning rate",
        ),
        (["algo=ppo", "algo.critic.path=nowhere"], "algo.critic.path: there is no 'nowhere'."),
        (["algo=ppo", "algo.critic.lr=2"], "algo.critic.lr: must be above 0 and at most 1, got 2."),
        (["algo=ppo", "algo.advantage_options.lambda=1"], "algo.advantage_options.lambda: estimator 'gae' has no such"),
        (["algo=ppo", *LORA], "algo.advantage=gae: the critic would need weights of its own beside"),
    ],
)
def test_what_would_do_nothing_or_the_wrong_thing_is_refused(words: list[str], wanted: str) -> None:
    problem, *others = examine([*LAPTOP, *words]).problems
    assert str(problem).startswith(wanted)
    assert words[1:] == LORA or not others, "only adapters have more against a model without weights"


def test_the_critic_of_other_algorithms_is_not_there() -> None:
    assert not run_stages(compose([*LAPTOP, "algo=reinforce_pp", "rollout.samples_per_prompt=1"])).have_critic
    assert load().estimators.get("gae").distribution == "slime-algorithms"


def test_the_plan_shows_the_critic_and_what_it_takes() -> None:
    def planned(*words: str) -> str:
        composed = examine(["+model=glm4-9b-trial", "+cluster=h200x1", "model.num_layers=12", *words])
        assert composed.problems == []
        return report(composed, load())

    beside, by_turns, without = planned("algo=ppo"), planned("algo=ppo", "algo.critic.offload=true"), planned()
    assert "critic      a second model from the policy's weights, learning rate 1e-05, for gae; stays beside" in beside
    assert all(f"critic's {item} " in beside for item in ("weights", "gradients", "optimizer"))
    assert "takes turns with the policy on the devices" in by_turns
    assert "critic's gradients" not in by_turns
    assert "critic's way out" in by_turns
    assert "a second model" not in without
    on_cpu = "with Adam on the CPU no checkpoint of a large one has been written yet"
    assert on_cpu in planned("algo=ppo", "train.optimizer.optimizer_cpu_offload=true")
    assert on_cpu not in planned("algo=ppo", "train.optimizer.optimizer_cpu_offload=false")


def test_a_device_that_is_too_small_for_both_is_told_of_turns() -> None:
    composed = examine(["+model=glm4-9b", "+cluster=h200x8", "algo=ppo"])
    [problem] = composed.problems
    assert "memory a device" in problem.where
    assert "algo.critic.offload=true" in problem.todo
