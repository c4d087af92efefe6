"""The difference between a recorded and a replayed step, as it is shown."""

from plugins.observers.tests.samples.test_groups import group
from slime_tools.replay.compare import of_groups, of_metrics, pairs

RECORDED = {"train/loss": 2.0, "train/odd": float("nan"), "seconds/train": 1.0, "rollout/reward_mean": 0.5}


def test_what_both_have_is_compared_but_for_time() -> None:
    now = {"train/loss": 2.0, "train/odd": float("nan"), "seconds/train": 9.0, "train/new": 1.0}
    assert [pair.name for pair in pairs(RECORDED, now)] == ["train/loss", "train/odd"]
    assert [*of_metrics(3, pairs(RECORDED, now), whole=False)] == ["step 3: 2 metrics, the same to the bit"]


def test_the_largest_difference_is_named() -> None:
    now = {"train/loss": 2.0, "train/odd": 1.0} | {"rollout/reward_mean": 0.25}
    assert [*of_metrics(3, pairs({**RECORDED, "train/odd": 1.5}, now))][-1] == (
        "step 3: 3 metrics, largest difference 50.00% of rollout/reward_mean (-2.5e-01)"
    )
    assert "inf% of train/odd (nan)" in [*of_metrics(3, pairs(RECORDED, now))][-1]


def test_a_step_without_a_row_says_so() -> None:
    assert [*of_metrics(3, pairs({}, {"train/loss": 1.0}))][-1] == "step 3: no metrics of it are recorded"


def test_samples_are_compared_token_by_token() -> None:
    before, now = [group(1), group(2)], [group(1), group(2)]
    assert [line.split()[-3:] for line in of_groups(3, before, now)][1:3] == [["2", "of", "2"]] * 2
    now[1].samples[0].segments[0].tokens[1] = 7
    lines = [*of_groups(3, before, now)]
    assert lines[1].endswith("1 of 2")
    assert lines[2].endswith("2 of 2")
    assert lines[-1] == "  prompt 0/2, sample 0: other tokens from 3 on"
