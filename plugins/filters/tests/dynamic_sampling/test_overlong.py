from __future__ import annotations

import pytest

from slime.compose.compose import examine
from slime.errors import SlimeError
from slime.plugins import load
from slime.sampling.guarded import FilterChain
from slime.types import Decision
from slime_testing.plugins import check_filter, check_shaping, group

OPTIONS = {"max_response_tokens": 100, "soft_tokens": 40}
RUN = ["+model=glm4-tiny", "+cluster=local"]


def test_overlong_keeps_the_contract() -> None:
    check_filter(
        "overlong",
        [([1.0, 1.0], Decision(keep=True)), ([1.0, None], Decision(keep=False, reason="too_few_values"))],
        OPTIONS,
    )


def test_a_prompt_with_one_sample_is_kept() -> None:
    """As critics and REINFORCE++ learn from it."""
    cases = [([1.0], Decision(keep=True)), ([None], Decision(keep=False, reason="too_few_values"))]
    check_filter("overlong", cases, OPTIONS)
    check_shaping("overlong", [(group([1.0], [80]), [-0.5])], OPTIONS)


def test_the_penalty_is_that_of_the_paper() -> None:
    """Equation 13: 0 up to L_max - L_cache, ((L_max - L_cache) - |y|) / L_cache up to L_max, then -1."""
    lengths = [0, 1, 60, 61, 80, 99, 100, 150]
    paper = [0, 0, 0, (60 - 61) / 40, (60 - 80) / 40, (60 - 99) / 40, -1, -1]
    given = group([1.0] * len(lengths), lengths)
    check_shaping("overlong", [(given, paper)], OPTIONS)
    check_shaping("overlong", [(given, [0.5 * each for each in paper])], OPTIONS | {"penalty": 0.5})


def test_soft_tokens_lie_before_the_limit() -> None:
    with pytest.raises(ValueError, match="soft_tokens is 101, not above 0 and at most max_response_tokens=100"):
        load().filters.create("overlong", **OPTIONS | {"soft_tokens": 101})


def test_dapo_is_both_and_drops_by_what_the_reward_said() -> None:
    """All are right, and differ by their penalties alone: nothing to learn but brevity, so the group is dropped."""
    composed = examine([*RUN, "filter=dapo", "filter.then.overlong.soft_tokens=4"])
    assert composed.problems == []
    cfg = composed.cfg.filter
    assert cfg.then["overlong"]["max_response_tokens"] == composed.cfg.rollout.sampling.max_response_tokens == 16
    chain = FilterChain(load().filters, cfg, patience_s=10)
    assert chain.decide(group([1.0, 1.0], [3, 16])) == Decision(keep=False, reason="all_correct")
    mixed = group([1.0, 0.0, None], [16, 3, 16])
    assert chain.decide(mixed) == Decision(keep=True)
    assert (mixed.rewards, mixed.raw_rewards) == ([0.0, 0.0], [1.0, 0.0])


def test_what_is_not_set_is_asked_for() -> None:
    (problem,) = examine([*RUN, "filter=dapo"]).problems
    assert str(problem).startswith("filter.then.overlong.soft_tokens: filter 'overlong' needs this option")


def test_a_length_that_cannot_be_ends_the_run_in_a_line() -> None:
    cfg = examine([*RUN, "filter=dapo", "filter.then.overlong.soft_tokens=17"]).cfg.filter
    with pytest.raises(SlimeError, match=r"filter 'overlong' of slime-filters .* soft_tokens is 17"):
        FilterChain(load().filters, cfg, patience_s=10)
