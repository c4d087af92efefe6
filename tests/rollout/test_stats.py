"""Metrics of finished groups."""

import pytest

from slime.rollout.stats import pass_at_k, zero_variance
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


def test_pass_at_k_is_the_chance_over_all_choices_of_k_samples() -> None:
    """Counted: of the 6 pairs of (1, 0, 0, 0) 3 hold the 1; of a prompt with 3 values there is no choice of 4."""
    groups = [group((1.0, 1), (0.0, 1), (0.0, 1), (0.0, 1)), group((0.0, 1), (-1.0, 1), (0.0, 1), (None, 1))]
    assert pass_at_k(groups) == {"rollout/pass_at_2": (3 / 6 + 0) / 2, "rollout/pass_at_4": 1.0}
    assert pass_at_k([group((1.0, 1))]) == {}
