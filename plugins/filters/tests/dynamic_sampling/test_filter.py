from __future__ import annotations

import pytest

from slime.compose.compose import examine
from slime.types import Decision
from slime_filters.dynamic_sampling.filter import DynamicSampling
from slime_testing.plugins import check_filter, group

KEEP = Decision(keep=True)


def drop(reason: str) -> Decision:
    return Decision(keep=False, reason=reason)


def test_dynamic_sampling_keeps_the_contract() -> None:
    check_filter(
        "dynamic-sampling",
        [
            ([0.0, 1.0, 0.0, 0.0], KEEP),
            ([1.0, 1.0, 1.0, 1.0], drop("all_correct")),
            ([0.0, 0.0, 0.0, 0.0], drop("all_wrong")),
            ([0.5, 0.5, 0.5, 0.5], drop("zero_std")),
            ([1.0, None, None, None], drop("too_few_values")),
            ([None, None, None, None], drop("too_few_values")),
            ([1.0, None, 1.0, None], drop("all_correct")),
            ([1.0, None, 0.0, None], KEEP),
        ],
    )


def test_the_least_spread_is_an_option() -> None:
    """Population standard deviations: 0.5 for [0, 1], 0.433 for three equal ones of four."""
    cases = [([0.0, 1.0, 0.0, 1.0], KEEP), ([0.0, 1.0, 1.0, 1.0], drop("low_std"))]
    check_filter("dynamic-sampling", cases, options={"min_std": 0.45})


def test_the_reward_of_a_wrong_answer_is_an_option() -> None:
    cases = [([-1.0] * 4, drop("all_wrong")), ([0.0] * 4, drop("zero_std"))]
    check_filter("dynamic-sampling", cases, options={"wrong_value": -1.0})


def test_the_number_of_values_is_an_option() -> None:
    decide = DynamicSampling(min_values=3).decide
    assert decide(group([1.0, 0.0, None])) == drop("too_few_values")
    assert decide(group([1.0, 0.0, 0.0])) == KEEP


@pytest.mark.parametrize("value", [0.1, 1e-300, 1e300])
def test_equal_rewards_are_equal_however_large(value: float) -> None:
    """A standard deviation computed in floats need not be 0 for equal numbers; equality is."""
    decision = DynamicSampling(correct_value=1e301).decide(group([value] * 7))
    assert decision == drop("zero_std")


ONE = ["+model=glm4-tiny", "+cluster=local", "algo=reinforce_pp", "rollout.samples_per_prompt=1"]


@pytest.mark.parametrize(
    ("words", "least"),
    [
        (["filter=dynamic-sampling"], 2),
        (["filter.then.dynamic-sampling={}"], 2),
        (["filter=dynamic-sampling", "filter.options.min_values=3", "rollout.samples_per_prompt=2"], 3),
    ],
)
def test_prompts_with_too_few_samples_to_compare_are_refused(words: list[str], least: int) -> None:
    pytest.importorskip("slime_algorithms.policy_losses", reason="brings the estimator that learns from one sample")
    [problem] = examine([*ONE, *words]).problems
    assert f"drops every prompt with fewer than {least} rewards" in str(problem)
    assert examine([*ONE, *words, f"rollout.samples_per_prompt={least}"]).problems == []
