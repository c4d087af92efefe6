"""What is said of a run that no longer learns."""

import logging

import pytest

from slime.errors import SlimeError
from slime.events import Step
from slime_observers.learning.watch import LearningWatch

STOPPED: list[SlimeError] = []


def watch(limit: int = 3) -> LearningWatch:
    return LearningWatch(limit, 64, stop=STOPPED.append)


def row(
    zero_variance: float = 0.5, *, reward: float = 0.0, std: float = 0.0, entropy: float = 0.5, truncated: float = 0.1
) -> dict[str, float]:
    return {
        "rollout/zero_variance_share": zero_variance,
        "rollout/reward_mean": reward,
        "rollout/reward_std": std,
        "rollout/truncated_share": truncated,
        "train/entropy": entropy,
    }


def problems(watched: LearningWatch, rows: list[dict[str, float]]) -> list[bool]:
    return [problem(watched, values, step) is not None for step, values in enumerate(rows, start=1)]


def problem(watched: LearningWatch, values: dict[str, float], step: int) -> SlimeError | None:
    STOPPED.clear()
    watched(Step("rl", step, values))
    return STOPPED[0] if STOPPED else None


def test_it_stops_after_so_many_steps_in_a_row() -> None:
    shares = [1, 1, 0.99, 1, 1, 1, 1]
    assert problems(watch(), [row(share) for share in shares]) == [False] * 5 + [True] * 2
    assert problems(watch(0), [row(share) for share in shares]) == [False] * 7


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (row(1), "(every reward is 0)"),
        (row(1, reward=1.0), "(every reward is 1)"),
        (row(1, reward=0.25, std=0.4), "(the mean is 0.25)"),
    ],
)
def test_the_message_has_the_value_and_both_readings(values: dict[str, float], says: str) -> None:
    told = str(problem(watch(1), values, 7))
    assert told.startswith("step 7: the rewards of each prompt's samples were equal in 1 steps in a row")
    for part in (says, "the prompts are solved", "may not find the answer", "zero_variance_steps=0 goes on"):
        assert part in told


def warned(rows: list[dict[str, float]], caplog: pytest.LogCaptureFixture) -> list[int]:
    """The steps at which something was said."""
    watched = watch()
    with caplog.at_level(logging.WARNING):
        problems(watched, rows)
    return [int(record.getMessage().split()[2].rstrip(":")) for record in caplog.records]


def test_a_collapsing_entropy_warns_once_until_it_recovers(caplog: pytest.LogCaptureFixture) -> None:
    entropies = [0.5, 0.2, 0.06, 0.04, 0.06, 0.03, 0.11, 0.04, 0.04]
    assert warned([row(entropy=entropy) for entropy in entropies], caplog) == [4, 8]
    assert "fell to 0.04 nats a token, from 0.5" in caplog.text
    assert "lower train.optimizer.lr, or raise algo.clip_high" in caplog.text


def test_responses_that_are_cut_off_warn_once_until_they_end(caplog: pytest.LogCaptureFixture) -> None:
    shares = [0.89, 0.95, 0.85, 0.97, 0.7, 0.9, 1.0]
    assert warned([row(truncated=share) for share in shares], caplog) == [2, 6]
    assert "95 % of the responses reached the limit of tokens" in caplog.text
    assert "rollout.sampling.max_response_tokens=64" in caplog.text


@pytest.mark.parametrize("entropy", [0.0, 1e-9])
def test_an_entropy_that_was_always_low_does_not_collapse(entropy: float, caplog: pytest.LogCaptureFixture) -> None:
    assert warned([row(entropy=entropy)] * 3, caplog) == []


def test_prompts_that_teach_nothing_for_ten_steps_are_told_once_until_they_do(caplog: pytest.LogCaptureFixture) -> None:
    """As where the reward asks for another form than the model gives: a few groups still differ, so nothing stops."""
    none = [row(0.93, reward=0.25)] * 12
    assert warned([*none, row(0.6), *none[:9], row(0.3), *none], caplog) == [10, 33]
    assert "more than 80 % of the prompts got equal rewards for all samples in 10 steps in a row" in caplog.text
    assert "slime check-reward" in caplog.text


def test_solved_prompts_are_no_such_thing(caplog: pytest.LogCaptureFixture) -> None:
    assert warned([row(0.95, reward=0.97)] * 12, caplog) == []
