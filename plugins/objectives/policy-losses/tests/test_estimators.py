"""Estimators against the papers' formulas in Python floats, and against what other implementations got wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from slime.compose.compose import compose, examine
from slime.estimator import Attempt
from slime_plugin_policy_losses.estimators import ReinforcePp, ReinforcePpBaseline, Rloo
from slime_testing.estimators import check_estimator

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
ROWS = [[(1.0, 3), (0.0, 1), (0.5, 2)], [(2.0, 4), (-1.0, 2)]]
STEP = [[Attempt(*row) for row in group] for group in ROWS]
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
    equal = [[Attempt(reward, 3), Attempt(reward, 70), Attempt(reward, 1009)], [Attempt(reward, 5)] * 7]
    assert all(np.all(np.abs(value) < 1e-6) for of_group in estimator.advantages(equal) for value in of_group)


def test_rloo_has_the_gradient_of_the_expected_reward() -> None:
    """The exact expectation over every pair of seven outcomes; a lone sample would have its raw reward."""
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0, -0.5, 1.1, -2.5], dtype=torch.float64, requires_grad=True)
    rewards = [1.0, 0.0, -0.7, 0.2, 0.0, 3.0, -1.0]
    logprobs = logits.log_softmax(0)
    loss = torch.zeros((), dtype=torch.float64)
    for i, one in enumerate(rewards):
        for j, other in enumerate(rewards):
            (advantages,) = Rloo().advantages([[Attempt(one, 1), Attempt(other, 1)]])
            chance = (logprobs[i] + logprobs[j]).detach().exp()
            loss = loss - chance * (advantages[0] * logprobs[i] + advantages[1] * logprobs[j]) / 2
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(-(logprobs.exp() * torch.tensor(rewards, dtype=torch.float64)).sum(), logits)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


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
    groups = [[Attempt(1.0, 1), Attempt(0.0, 99)]]
    (values,) = ReinforcePp().advantages(groups)
    tokens = np.concatenate(values)
    assert math.isclose(tokens.std(), 1, rel_tol=1e-6)
    assert abs(tokens.mean()) < 1e-12
