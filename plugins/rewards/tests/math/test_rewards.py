from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import pytest

from slime.types import Status, Verdict, VerdictKind
from slime_rewards.math.options import AnswerForm
from slime_rewards.math.rewards import ArithmeticReward, DapoReward, DeepscalerReward, MathReward
from slime_testing.plugins import RewardCase, check_reward, sample

RIGHT = Verdict.of(1.0, correct=1.0, format=1.0)


def test_math_keeps_the_contract() -> None:
    check_reward(
        "math",
        [
            RewardCase("so \\boxed{5}", "5", RIGHT),
            RewardCase("Answer: 0.5", "\\frac12", RIGHT),
            RewardCase("it is 5", 5, Verdict.of(1.0, correct=1.0, format=0.0)),
            RewardCase("\\boxed{6}", "5", Verdict.of(0.0, correct=0.0, format=1.0)),
            RewardCase("", "5", Verdict.of(0.0, correct=0.0, format=0.0)),
            RewardCase("5", None, Verdict.invalid("row 0/0: label None is a NoneType, not a finite number or text")),
            RewardCase("5", ["5"], Verdict.invalid("row 0/0: label ['5'] is a list, not a finite number or text")),
        ],
    )


def test_math_with_a_strict_box_and_a_penalty() -> None:
    check_reward(
        "math",
        [
            RewardCase("\\boxed{5}", "5", RIGHT),
            RewardCase("Answer: 5", "5", Verdict.of(-1.0, correct=0.0, format=0.0)),
        ],
        options={"answer": "boxed", "wrong_value": -1.0},
    )


def test_deepscaler_keeps_the_contract() -> None:
    check_reward(
        "deepscaler",
        [
            RewardCase("is it 6?</think> It is \\boxed{5}.", "5", RIGHT),
            RewardCase("<think>a</think> \\boxed{6} <think>b</think> \\boxed{5}", 5, RIGHT),
            RewardCase("</think>\\boxed{5}", "\\boxed{5}", RIGHT),
            RewardCase("\\boxed{5}</think> Answer: 5", "5", Verdict.of(0.0, correct=0.0, format=0.0)),
            RewardCase("\\boxed{5}", "5", Verdict.of(0.0, correct=0.0, format=0.0)),
            RewardCase("</think>\\boxed{6}", "5", Verdict.of(0.0, correct=0.0, format=1.0)),
            RewardCase(
                "\\boxed{5}", None, Verdict.invalid("row 0/0: label None is a NoneType, not a finite number or text")
            ),
        ],
    )


def test_dapo_keeps_the_contract() -> None:
    check_reward(
        "dapo",
        [
            RewardCase("Answer: 6\nNo.\nAnswer: $5$", "5", RIGHT),
            RewardCase("Answer: \\boxed{5}", 5, RIGHT),
            RewardCase("Answer: 6", "5", Verdict.of(-1.0, correct=0.0, format=1.0)),
            RewardCase("\\boxed{5}", "5", Verdict.of(-1.0, correct=0.0, format=0.0)),
            RewardCase("Answer: 5", [], Verdict.invalid("row 0/0: label [] is a list, not a finite number or text")),
        ],
    )


@pytest.mark.parametrize(
    ("reward", "cut", "complete"),
    [
        (MathReward(), "it is 5", "it is \\boxed{5} as"),
        (DeepscalerReward(), "</think> \\boxed{5} or \\boxed{", "</think> \\boxed{5} as"),
        (DapoReward(), "Answer: 5", "Answer: 5\nas"),
    ],
)
def test_a_response_that_was_cut_off_earns_by_a_complete_answer_alone(reward: Any, cut: str, complete: str) -> None:
    for text, earns in ((cut, False), (complete, True)):
        truncated = dataclasses.replace(sample(text, "5"), status=Status.TRUNCATED)
        assert reward.score(truncated).parts["correct"] == earns
    assert reward.score(dataclasses.replace(sample(cut, "5"), status=Status.COMPLETED)).parts["correct"] == 1.0


def test_arithmetic_keeps_the_contract() -> None:
    check_reward(
        "arithmetic",
        [
            RewardCase("70+15=85", "85", Verdict.of(1.0)),
            RewardCase(" 85 ", "85", Verdict.of(1.0)),
            RewardCase("85", 85, Verdict.of(1.0)),
            RewardCase("75", "85", Verdict.of(0.0)),
            RewardCase("70+15=", "85", Verdict.of(0.0)),
            RewardCase("the sum is 85", "85", Verdict.of(0.0)),
            RewardCase("85", {}, Verdict.invalid("row 0/0: label {} is a dict, not a finite number or text")),
        ],
    )


def test_a_wrong_answer_costs_what_the_options_say() -> None:
    assert ArithmeticReward(wrong_value=-0.5).score(sample("1", "2")).value == -0.5


@pytest.mark.parametrize("form", list(AnswerForm))
def test_no_response_whatever_raises(form: AnswerForm) -> None:
    rng, reward = random.Random(0), MathReward(answer=form)
    pieces = ["\\boxed{", "}", "Answer:", "\n", "9" * 300, "\\frac{", "1", "/", "0", ",", ".", "-", "=", "²", "\0", " "]
    for _ in range(2000):
        response = "".join(rng.choices(pieces, k=12))
        assert reward.score(sample(response, "9" * 300)).kind is VerdictKind.VALUE


@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "\\boxed ",
        "answer to ",
        "<answer>",
        "####",
        "$",
        "1,",
        "\\text{",
        "answer is ",
        "9",
        "\\frac{1}{",
        " " * 7,
        "1/",
        "\\",
        "\\boxed{}",
        "\\boxed{5}, ",
        "\\quad",
        "\nNote: ",
        "答案",
        "答案：",
        "yes ",
        "is true ",
    ],
)
def test_a_long_response_is_judged_in_time(piece: str) -> None:
    """100,000 characters take well under a second; a regular expression that backtracks would take hours."""
    response: Any = piece * (100_000 // len(piece))
    began = time.process_time()
    for label in ("5", "yes"):
        MathReward().score(sample(response, label))
        MathReward().score(sample(f"\\boxed{{{response}}}", label))
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("reward", [MathReward(), DeepscalerReward(), DapoReward()])
def test_a_thought_is_no_answer(reward):
    answer = "Answer: \\boxed{5}\n"
    for response in (
        f"<think>{answer}</think>",
        f"<think>{answer}",
        f"{answer}</think>No.",
        f"</think><think>{answer}",
    ):
        assert reward.score(sample(response, "5")).parts["correct"] == 0
    assert reward.score(sample(f"<think>Answer: \\boxed{{6}}</think>{answer}", "5")).value == 1
