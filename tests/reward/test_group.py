"""Rewards that judge the samples of a prompt together, in real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from slime.reward.service import RewardService
from slime.types import Verdict, VerdictKind
from tests.reward.asking import rewards
from tests.reward.misbehaving import sample


@pytest.fixture(scope="module")
def together(installed: None) -> Iterator[RewardService]:
    with rewards(name="together") as service:
        yield service


def score(service: RewardService, responses: Sequence[str], label: Any = None) -> list[Verdict]:
    samples = [replace(sample(response, label), index=index) for index, response in enumerate(responses)]
    return asyncio.run(service.score_group(samples))


def test_the_driver_learns_of_its_workers_what_a_reward_judges(together: RewardService, service: RewardService) -> None:
    assert together.judges_groups(sample("").prompt)
    assert not service.judges_groups(sample("").prompt)


@pytest.mark.parametrize("size", [1, 8])
def test_each_sample_of_a_group_has_a_verdict_of_its_own(together: RewardService, size: int) -> None:
    assert score(together, [""] * size) == [Verdict.of(index, size=size) for index in range(size)]


@pytest.mark.parametrize("answer", [None, 5.0, "two", [1.0]])
def test_an_answer_of_another_form_is_an_error_of_all(together: RewardService, answer: Any) -> None:
    verdicts = score(together, ["echo", ""], answer)
    said = f"score_group returned {answer!r}, not a list of 2 Verdicts"
    assert verdicts == [Verdict.error(said)] * 2


def test_what_is_no_verdict_costs_its_sample_alone(together: RewardService) -> None:
    first, second = score(together, ["echo", ""], [Verdict.of(1.0), 0.5])
    assert first == Verdict.of(1.0)
    assert (second.kind, second.reason) == (
        VerdictKind.ERROR,
        "score_group returned 0.5, not a Verdict; wrap a number in Verdict.of(...)",
    )


def test_what_it_raises_and_how_it_dies_is_told_of_all(together: RewardService) -> None:
    raised = score(together, ["fail", ""])
    assert raised[0] == raised[1]
    assert "in score_group" in raised[0].reason
    killed = score(together, ["segfault", ""])
    assert ["SIGSEGV" in each.reason for each in killed] == [True, True]
    assert [each.value for each in score(together, ["", ""])] == [0.0, 1.0]


def test_a_group_has_the_time_limit_of_a_sample(installed: None) -> None:
    with rewards(name="together", timeout_s=0.5) as service:
        assert {each.kind for each in score(service, ["sleep", "", ""], 1000)} == {VerdictKind.TIMEOUT}
