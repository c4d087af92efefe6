"""Advantages against the paper's sums in float64, written term by term."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from slime.algo.stages import estimator_of
from slime.config.schema import AlgoConfig
from slime.errors import SlimeError
from slime.estimator import CriticEstimator
from slime_algorithms.ppo.gae import CHUNK, Gae, discounted_sums
from slime_testing.estimators import attempt, check_estimator

EXACT = {"rel": 1e-11, "abs": 1e-12}
"""Float64 on both sides, up to a thousand terms of order 1 in another order."""


def paper(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """Equation 16 of arXiv 1506.02438: A_t = sum over l of (gamma lambda)^l delta_t+l, with the delta of equation 9."""
    count = len(rewards)
    following = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * following[t] - values[t] for t in range(count)]
    return [math.fsum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)]


@pytest.mark.parametrize("count", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (0.9, 0.0), (0.0, 0.5)])
def test_advantages_are_the_papers_sums(count: int, gamma: float, lam: float) -> None:
    generator = np.random.default_rng(count)
    rewards, values = generator.normal(size=count), generator.normal(size=count)
    before = rewards.copy(), values.copy()
    found = Gae(gamma=gamma, gae_lambda=lam).from_values(rewards, values)
    assert found.tolist() == pytest.approx(paper(rewards.tolist(), values.tolist(), gamma, lam), **EXACT)
    assert (rewards == before[0]).all()
    assert (values == before[1]).all()


@pytest.mark.parametrize("lambdas", [(1.0, 1.0), (0.95, 1.0), (0.95, 0.95), (1.0, 0.9), (0.0, 0.5)])
def test_policy_and_critic_have_each_its_lambda(lambdas: tuple[float, float]) -> None:
    """Both are the paper's sums; a critic's target is its value plus the sum of its own lambda."""
    (policy, critic), generator = lambdas, np.random.default_rng(3)
    rewards, values = generator.normal(size=300), generator.normal(size=300)
    gae = Gae(gamma=0.99, gae_lambda=policy, critic_lambda=critic)
    advantages = gae.from_values(rewards, values)
    assert advantages.tolist() == pytest.approx(paper(rewards.tolist(), values.tolist(), 0.99, policy), **EXACT)
    wanted = np.array(paper(rewards.tolist(), values.tolist(), 0.99, critic)) + values
    assert gae.targets(rewards, values, advantages).tolist() == pytest.approx(wanted.tolist(), **EXACT)


def test_unless_told_otherwise_each_token_of_a_long_answer_has_the_whole_reward() -> None:
    """With the critic's head at 0, as it starts."""
    rewards, values = np.zeros(1000), np.zeros(1000)
    rewards[-1] = 1.0
    gae = Gae()
    advantages = gae.from_values(rewards, values)
    assert (advantages == 1.0).all()
    assert (gae.targets(rewards, values, advantages) == 1.0).all()
    assert Gae(gae_lambda=0.95).from_values(rewards, values)[-101] == pytest.approx(0.95**100, rel=1e-12)


def test_with_lambda_of_one_the_return_is_the_discounted_reward_whatever_the_values() -> None:
    rewards, values = np.array([0.0, 0.0, 0.0, 2.0]), np.array([5.0, -1.0, 0.3, 7.0])
    returns = Gae(gamma=0.5, gae_lambda=1.0).from_values(rewards, values) + values
    assert returns.tolist() == pytest.approx([0.25, 0.5, 1.0, 2.0], **EXACT)


def test_a_critic_that_is_right_leaves_no_advantage() -> None:
    values = 0.9 ** np.arange(299, -1, -1.0)
    rewards = np.zeros(300)
    rewards[-1] = 1.0
    assert np.abs(Gae(gamma=0.9, gae_lambda=0.7).from_values(rewards, values)).max() < 1e-12


def test_the_reward_stands_at_the_last_loss_token_of_each_segment() -> None:
    gae = Gae(gamma=0.5)
    [[whole, cut]] = gae.advantages([[attempt(2.0, 3), attempt(2.0, 5, (2, 3))]])
    assert whole.tolist() == [0.0, 0.0, 2.0]
    assert cut.tolist() == [0.0, 2.0 * 0.5**3, 0.0, 0.0, 2.0]


def test_segments_of_an_attempt_have_the_returns_of_the_whole() -> None:
    gae = Gae(gamma=0.5, gae_lambda=1.0)
    [[whole, cut]] = gae.advantages([[attempt(2.0, 5), attempt(2.0, 5, (2, 3))]])
    nothing = np.zeros(5)
    returns = [*gae.from_values(cut[:2], nothing[:2]), *gae.from_values(cut[2:], nothing[2:])]
    assert returns == pytest.approx(gae.from_values(whole, nothing).tolist(), **EXACT)


def test_sums_of_a_factor_of_zero_are_the_terms() -> None:
    terms = np.arange(300.0)
    assert (discounted_sums(terms, 0.0) == terms).all()


def test_the_contract_of_an_estimator() -> None:
    check_estimator("gae", options={"gamma": 0.9})
    assert isinstance(estimator_of(AlgoConfig(advantage="gae")), CriticEstimator)


@pytest.mark.parametrize("options", [{"gamma": 1.1}, {"gae_lambda": -0.1}, {"critic_lambda": 1.5}, {"value_clip": 0.0}])
def test_an_option_out_of_bounds_is_refused(options: dict[str, float]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(SlimeError, match=rf"{name} must be .* got {value:g}"):
        estimator_of(AlgoConfig(advantage="gae", advantage_options=options))
