"""Estimators against the papers' formulas in Python floats, and against what other implementations got wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slime.compose.compose import compose, examine
from slime_algorithms.policy_losses.estimators import ReinforcePp, ReinforcePpBaseline, Rloo
from slime_testing.estimators import attempt, check_estimator

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
ROWS = [[(1.0, 3), (0.0, 1), (0.5, 2)], [(2.0, 4), (-1.0, 2)]]
STEP = [[attempt(*row) for row in group] for group in ROWS]
EXACT: dict[str, Any] = {"rel": 1e-12, "abs": 1e-15}  # float64 on both sides; a few roundings and an epsilon of 1e-8
NEAR: dict[str, Any] = {"rel": 3e-8, "abs": 1e-15}
"""Where 1e-8 is added to a deviation near 1."""


def of_tokens(values: Sequence[Sequence[Any]]) -> list[float]:
    """Of every loss token of the step."""
    step = zip(STEP, values, strict=True)
    pairs = [pair for group, of_group in step for pair in zip(group, of_group, strict=True)]
    return [x for attempt, value in pairs for x in np.broadcast_to(value, attempt.num_loss_tokens).tolist()]


def whitened(tokens: Sequence[float]) -> list[float]:
    mean, deviation = statistics.fmean(tokens), statistics.pstdev(tokens)
    return [(value - mean) / deviation for value in tokens]


def test_rloo_compares_with_the_others_of_the_group() -> None:
    found = Rloo().advantages(STEP)
    assert found[0] == pytest.approx([1 - 0.25, -0.75, 0.5 - 0.5], **EXACT)
    assert found[1] == pytest.approx([3, -3], **EXACT)


def test_reinforce_pp_whitens_returns_over_the_tokens_of_the_step() -> None:
    tokens = [1.0] * 3 + [0.0] + [0.5] * 2 + [2.0] * 4 + [-1.0] * 2
    assert of_tokens(ReinforcePp().advantages(STEP)) == pytest.approx(whitened(tokens), **NEAR)


def test_a_discount_counts_the_loss_tokens_that_follow() -> None:
    discounted = [0.25, 0.5, 1.0, 0.0, 0.25, 0.5, 0.25, 0.5, 1.0, 2.0, -0.5, -1.0]
    assert of_tokens(ReinforcePp(gamma=0.5).advantages(STEP)) == pytest.approx(whitened(discounted), **NEAR)


def test_the_baseline_is_taken_away_before_whitening() -> None:
    tokens = [0.5] * 3 + [-0.5] + [0.0] * 2 + [1.5] * 4 + [-1.5] * 2
    assert of_tokens(ReinforcePpBaseline().advantages(STEP)) == pytest.approx(whitened(tokens), **NEAR)


@pytest.mark.parametrize(
    "estimator", [Rloo(), ReinforcePp(), ReinforcePpBaseline()], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("reward", [0.7, 1e8 + 0.1, 1e12 - 0.1])
def test_equal_rewards_teach_nothing(estimator: Any, reward: float) -> None:
    equal = [[attempt(reward, 3), attempt(reward, 70), attempt(reward, 1009)], [attempt(reward, 5)] * 7]
    assert all(np.all(np.abs(value) < 1e-6) for of_group in estimator.advantages(equal) for value in of_group)


def test_rloo_has_the_gradient_of_the_expected_reward() -> None:
    """The exact expectation over every pair of seven outcomes; a lone sample would have its raw reward."""
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0, -0.5, 1.1, -2.5], dtype=torch.float64, requires_grad=True)
    rewards = [1.0, 0.0, -0.7, 0.2, 0.0, 3.0, -1.0]
    logprobs = logits.log_softmax(0)
    loss = torch.zeros((), dtype=torch.float64)
    for i, one in enumerate(rewards):
        for j, other in enumerate(rewards):
            (advantages,) = Rloo().advantages([[attempt(one, 1), attempt(other, 1)]])
            chance = (logprobs[i] + logprobs[j]).detach().exp()
            loss = loss - chance * (advantages[0] * logprobs[i] + advantages[1] * logprobs[j]) / 2
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(-(logprobs.exp() * torch.tensor(rewards, dtype=torch.float64)).sum(), logits)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


COUNTS, REWARDS = [3, 1, 5, 2, 4, 1, 4], [1.0, 0.0, -0.7, 0.2, 0.0, 3.0, -1.0]
"""How often each of seven outcomes comes in twenty samples, which is also its probability in twentieths."""


def expected_slope(groups: Sequence[Sequence[int]], estimator: Any) -> tuple[Tensor, Tensor]:
    """Of a policy of seven outcomes: the gradient of the expected reward over the deviation of rewards, and that of the
    estimator's loss over groups of outcomes, of one token each."""
    chances = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    logits, rewards = chances.log().requires_grad_(), torch.tensor(REWARDS, dtype=torch.float64)
    logprobs = logits.log_softmax(0)
    deviation = ((chances * rewards.square()).sum() - (chances * rewards).sum().square()).sqrt()
    found = estimator.advantages([[attempt(REWARDS[outcome], 1) for outcome in group] for group in groups])
    advantages = torch.tensor(np.concatenate([value for of_group in found for value in of_group]))
    loss = -(advantages * logprobs[[outcome for group in groups for outcome in group]]).mean()
    (wanted,) = torch.autograd.grad(-(logprobs.exp() * rewards).sum() / deviation, logits, retain_graph=True)
    (slope,) = torch.autograd.grad(loss, logits)
    return wanted, slope


def test_whitened_returns_have_the_gradient_of_the_expected_reward_over_its_deviation() -> None:
    """Of a step in which each outcome comes as often as the policy draws it. A step of a few draws divides by a
    deviation of its own, which depends on the sample that it weighs: its expectation is near that gradient, and no
    multiple of it."""
    step = [[outcome] for outcome, count in enumerate(COUNTS) for _ in range(count)]
    wanted, found = expected_slope(step, ReinforcePp())
    torch.testing.assert_close(found, wanted, rtol=3e-8, atol=1e-12)  # 1e-8 is added to the deviation


def test_whitened_baselines_have_it_too() -> None:
    """Of a step with every pair as often as the policy draws it. The mean of a pair takes half of the gradient, and the
    deviation of what is left is that of rewards over the root of 2."""
    drawn = [outcome for outcome, count in enumerate(COUNTS) for _ in range(count)]
    wanted, found = expected_slope([[one, other] for one in drawn for other in drawn], ReinforcePpBaseline())
    torch.testing.assert_close(found, wanted / math.sqrt(2), rtol=3e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [("rloo", {}), ("reinforce_pp", {}), ("reinforce_pp", {"gamma": 0.9}), ("reinforce_pp_baseline", {})],
)
def test_they_keep_the_contract(name: str, options: dict[str, Any]) -> None:
    check_estimator(name, options=options)


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp", "reinforce_pp_baseline"])
def test_each_is_chosen_by_algo(name: str) -> None:
    algo = compose([*LAPTOP, f"algo={name}"]).algo
    assert (algo.name, algo.advantage) == ("grpo", name)


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp_baseline"])
def test_a_lone_sample_is_refused_where_it_would_have_its_raw_reward(name: str) -> None:
    (problem,) = examine([*LAPTOP, f"algo={name}", "rollout.samples_per_prompt=1"]).problems
    assert str(problem) == (
        f"rollout.samples_per_prompt: algo.advantage={name} compares at least 2 samples of a prompt. "
        "Set it to 2 or more."
    )
    assert not examine([*LAPTOP, "algo=reinforce_pp", "rollout.samples_per_prompt=1"]).problems


def test_the_deviation_of_a_group_is_no_option_of_theirs() -> None:
    (problem,) = examine([*LAPTOP, "algo=rloo", "algo.normalize_std=false"]).problems
    assert problem.what == "does nothing without an estimator that reads it, as algo.advantage=grpo"
    (problem,) = examine([*LAPTOP, "algo=rloo", "algo.advantage_options.gamma=1"]).problems
    assert str(problem) == (
        "algo.advantage_options.gamma: estimator 'rloo' has no such option. Remove it: it takes no options."
    )


def test_the_variance_of_a_token_does_not_depend_on_its_sample_s_length() -> None:
    """Whitening over samples would give those of long ones another scale."""
    groups = [[attempt(1.0, 1), attempt(0.0, 99)]]
    (values,) = ReinforcePp().advantages(groups)
    tokens = np.concatenate(values)
    assert math.isclose(tokens.std(), 1, rel_tol=1e-6)
    assert abs(tokens.mean()) < 1e-12
