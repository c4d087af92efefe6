"""Metrics of finished groups."""

import pytest

from slime.rollout.stats import zero_variance
from slime.types import Group, Prompt, Sample, Verdict

PROMPT = Prompt("0/0", (), (1,))


def group(*samples: tuple[float | None, int]) -> Group:
    """Samples as (reward, number of tokens)."""
    return Group(
        PROMPT,
        [
            Sample(PROMPT, index, loss_mask=[1] * count, verdict=Verdict.invalid("") if x is None else Verdict.of(x))
            for index, (x, count) in enumerate(samples)
        ],
    )


def test_groups_of_equal_rewards_are_counted_with_their_tokens() -> None:
    groups = [group((1.0, 30), (1.0, 20)), group((1.0, 10), (0.0, 15)), group((0.0, 5), (None, 1000))]
    assert zero_variance(groups) == {
        "rollout/zero_variance_share": pytest.approx(2 / 3),
        "rollout/zero_variance_token_share": (30 + 20 + 5) / 80,
    }
