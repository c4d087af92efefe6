"""Which responses earn, and which rows cannot be judged."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from slime.types import Prompt, Sample, Status, Verdict, VerdictKind
from slime_rewards.starter.rewards import CountdownReward, Gsm8kReward, ReverseTextReward, evaluate
from slime_testing.plugins import RewardCase, check_reward

LABEL = {"numbers": [3, 4, 5], "target": 23}


def sample(response: str, label: object, status: Status = Status.COMPLETED) -> Sample:
    prompt = Prompt(id="0/0", messages=({"role": "user", "content": "?"},), tokens=(1,), label=label)
    return Sample(prompt=prompt, index=0, response=response, status=status)


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("so <answer>4 * 5 + 3</answer>", 1.0),
        ("<answer> (4*5)+3 </answer>", 1.0),
        ("<answer>1</answer> no: <answer>3+5*4</answer>", 1.0),
        ("<answer>4 * 5 + 3 = 23</answer>", 0.0),
        ("<answer>4 * 5</answer>", 0.1),
        ("<answer>23</answer>", 0.1),
        ("<answer>4 * 5 + 3 + 0</answer>", 0.1),
        ("<answer>4 + 5 + 3</answer>", 0.1),
        ("<answer>-(4 * 5) - 3</answer>", 0.0),
        ("<answer>__import__('os').getpid()</answer>", 0.0),
        ("<answer>9**9**9**9</answer>", 0.0),
        ("4 * 5 + 3", 0.0),
    ],
)
def test_countdown(response: str, value: float) -> None:
    assert CountdownReward().score(sample(response, LABEL)).value == value


def test_expressions_are_exact_and_bounded() -> None:
    assert evaluate("1 / 3 + 2 / 3") == (Fraction(1), Counter({1: 1, 3: 2, 2: 1}))
    assert evaluate("5 / (3 - 3)") is None
    assert evaluate("(" * 100 + "1" + ")" * 99) is None
    assert evaluate("1" * 300) is None


def test_reversed_text_earns_by_likeness() -> None:
    score = ReverseTextReward().score
    assert score(sample("elppa\n", "elppa")).value == 1.0
    partly = score(sample("elpap", "elppa")).value
    assert partly is not None
    assert 0.5 < partly < 1.0
    assert score(sample("x" * 100_000, "elppa")).value == 0.0


@pytest.mark.parametrize(
    ("response", "status", "value"),
    [
        ("48 / 2 = 24, so 48 + 24 = 72", Status.COMPLETED, 1.0),
        ("#### 72", Status.COMPLETED, 1.0),
        (r"\boxed{72} in all", Status.COMPLETED, 1.0),
        ("48 + 24 = 72 and 1", Status.COMPLETED, 0.0),
        ("48 + 24 = 72", Status.TRUNCATED, 0.0),
    ],
)
def test_gsm8k_compares_with_the_number_behind_the_marks(response: str, status: Status, value: float) -> None:
    assert Gsm8kReward().score(sample(response, "48 + 24 = <<48+24=72>>72\n#### 72", status)).value == value


@pytest.mark.parametrize("reward", [CountdownReward(), Gsm8kReward(), ReverseTextReward()])
def test_a_label_of_another_kind_is_invalid_and_named(reward: CountdownReward) -> None:
    verdict = reward.score(sample("1", 7))
    assert verdict.kind is VerdictKind.INVALID
    assert "0/0" in verdict.reason


CASES = {
    "countdown": [
        RewardCase("<answer>4 * 5 + 3</answer>", LABEL, Verdict.of(1.0, correct=1.0, format=1.0)),
        RewardCase("none", LABEL, Verdict.of(0.0, correct=0.0, format=0.0)),
    ],
    "gsm8k": [
        RewardCase("72", "#### 72", Verdict.of(1.0)),
        RewardCase("71", "#### 72", Verdict.of(0.0)),
        RewardCase("so 1200", "1,200", Verdict.of(1.0)),
        RewardCase("72", "71", Verdict.of(0.0)),
        RewardCase("72", "many", Verdict.invalid("row 0/0: label 'many' has no number behind ####, nor is it one")),
    ],
    "reverse-text": [RewardCase("elppa", "elppa", Verdict.of(1.0, exact=1.0))],
}


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    check_reward(name, CASES[name])


def test_the_value_of_a_readable_answer_is_an_option() -> None:
    case = RewardCase("<answer>4</answer>", LABEL, Verdict.of(0.0, correct=0.0, format=1.0))
    check_reward("countdown", [case], {"format_value": 0.0})
