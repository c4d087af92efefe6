import math
import statistics

import pytest

from slime.algo.advantages import EPSILON, group_advantages


def test_grpo_normalises_by_mean_and_deviation() -> None:
    rewards = [1.0, 0.0, 0.5, 0.25]
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    wanted = [(reward - mean) / (deviation + EPSILON) for reward in rewards]
    assert group_advantages(rewards, normalize_std=True) == pytest.approx(wanted, rel=1e-15)


def test_without_deviation_only_the_mean_is_taken_off() -> None:
    assert group_advantages([1.0, 0.0, 0.5], normalize_std=False) == [0.5, -0.5, 0.0]


@pytest.mark.parametrize("rewards", [[0.7, 0.7, 0.7], [3.0], [], [1e12 - 0.1] * 9, [1e12 - 0.1] * 13])
def test_equal_or_lone_rewards_say_nothing(rewards: list[float]) -> None:
    assert all(abs(value) < 1e-9 for value in group_advantages(rewards, normalize_std=True))


def test_nearly_equal_rewards_stay_finite() -> None:
    values = group_advantages([0.1, 0.1 + 1e-12], normalize_std=True)
    assert all(math.isfinite(value) and abs(value) < 1e-3 for value in values)
