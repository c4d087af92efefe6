"""Metrics of finished groups."""

from random import Random
from statistics import fmean

import pytest

from slime.sampling.stats import length_bias, pass_at_k, zero_variance
from slime.segments import Segment, WeightSpan
from slime.types import Group, Prompt, Sample, Status, Verdict

PROMPT = Prompt("0/0", (), (1,))


def group(*samples: tuple[float | None, int]) -> Group:
    """Samples as (reward, number of tokens)."""
    return Group(
        PROMPT,
        [
            Sample(
                PROMPT,
                index,
                [Segment((), loss_mask=[1] * count)],
                verdict=Verdict.invalid("") if x is None else Verdict.of(x),
            )
            for index, (x, count) in enumerate(samples)
        ],
    )


def test_groups_of_equal_rewards_are_counted_with_their_tokens() -> None:
    groups = [group((1.0, 30), (1.0, 20)), group((1.0, 10), (0.0, 15)), group((0.0, 5), (None, 1000))]
    assert zero_variance(groups) == {
        "rollout/zero_variance_share": pytest.approx(2 / 3),
        "rollout/zero_variance_token_share": (30 + 20 + 5) / 80,
    }


def test_lone_samples_are_compared_over_the_step() -> None:
    alone = [group((1.0, 30)), group((0.0, 10)), group((1.0, 5))]
    assert set(zero_variance(alone).values()) == {0.0}
    assert set(zero_variance(alone[::2]).values()) == {1.0}


def test_pass_at_k_is_the_chance_over_all_choices_of_k_samples() -> None:
    """Counted: of the 6 pairs of (1, 0, 0, 0) 3 hold the 1; of a prompt with 3 values there is no choice of 4."""
    groups = [group((1.0, 1), (0.0, 1), (0.0, 1), (0.0, 1)), group((0.0, 1), (-1.0, 1), (0.0, 1), (None, 1))]
    assert pass_at_k(groups, 1.0) == {"rollout/pass_at_2": (3 / 6 + 0) / 2, "rollout/pass_at_4": 1.0}
    assert pass_at_k([group((1.0, 1))], 1.0) == {}


def test_partial_credit_passes_at_its_threshold_alone() -> None:
    wrong = [group((0.167, 1), (0.167, 1)), group((sum([0.1] * 10), 1), (0.167, 1))]
    assert pass_at_k(wrong, 1.0) == {"rollout/pass_at_2": 0.5}, "ten parts of 0.1 are 0.9999999999999999"
    assert pass_at_k(wrong, 0.1) == {"rollout/pass_at_2": 1.0}
    assert pass_at_k([group((-1.0, 1), (-0.5, 1))], -0.5) == {"rollout/pass_at_2": 1.0}


def begun(name: str, length: int, status: Status) -> Group:
    prompt = Prompt(name, (), (1,))
    return Group(prompt, [Sample(prompt, 0, [Segment((1,), spans=[WeightSpan(0, length)])], status)])


def test_the_bias_towards_short_answers_counts_what_was_cut_off_as_what_it_would_become() -> None:
    """By hand: of four responses one ends at 2; of the two that reach 6 one ends there, the other at 10; the one that
    was cut off at 4 says that it is longer than 4. 2 + 3/4 (6 - 2) + 3/8 (10 - 6) = 6.5; the kept ones have 4."""
    groups = [begun("0/0", 2, Status.COMPLETED), begun("0/1", 6, Status.TRUNCATED)]
    late = [begun("0/2", 10, Status.COMPLETED), begun("0/3", 4, Status.ABORTED)]
    assert length_bias([*groups, *late], groups) == {"rollout/length_bias": pytest.approx(4 - 6.5)}


def test_nothing_is_biased_where_all_that_was_begun_is_kept() -> None:
    groups = [begun(f"0/{length}", length, Status.COMPLETED) for length in (3, 7, 7, 20)]
    assert length_bias(groups, groups) == {"rollout/length_bias": pytest.approx(0)}
    assert length_bias(groups, []) == {}


def test_the_estimate_of_the_bias_is_that_of_a_simulation() -> None:
    """Geometric lengths of mean 50, cut off at 60 tokens: the restricted mean is 50 (1 - 0.98^60) = 35.1, and the mean
    of those that ended by then is less. Tolerance: four standard errors of 4,000 draws."""
    random = Random(3)
    lengths = [next(n for n in range(1, 10**6) if random.random() < 0.02) for _ in range(4000)]
    groups = [
        begun(f"0/{i}", min(n, 60), Status.COMPLETED if n <= 60 else Status.ABORTED) for i, n in enumerate(lengths)
    ]
    kept = [group for group, n in zip(groups, lengths, strict=True) if n <= 60]
    of_kept = fmean(n for n in lengths if n <= 60)
    expected = of_kept - 50 * (1 - 0.98**60)
    assert length_bias(groups, kept)["rollout/length_bias"] == pytest.approx(expected, abs=4 * 22 / 4000**0.5)
