"""The rows of steps: what each says, and where what was measured later goes."""

from slime.events import Events
from slime.observe.step_log import StepLog
from slime.observe.stopwatch import Stopwatch


def test_what_is_measured_after_a_row_stands_in_the_next_complete_one():
    told = []
    log, watch = StepLog(Events(told.append)), Stopwatch()
    log.incomplete("rl", 0, {"eval/reward_mean": 1})
    watch.add("train", 0.25)
    log.complete("rl", 1, {"train/loss": 2}, watch, 100.0)
    log.late({"seconds/checkpoint": 3.0})
    log.incomplete("rl", 2, {"train/loss": 9})
    log.complete("rl", 2, {"train/loss": 4}, watch, 100.0)
    log.complete("rl", 3, {}, watch, 100.0)
    rows = [(step.stage, step.step, step.complete) for step in told]
    assert rows == [("rl", 0, False), ("rl", 1, True), ("rl", 2, False), ("rl", 2, True), ("rl", 3, True)]
    assert told[0].values == {"eval/reward_mean": 1.0}
    assert ["seconds/checkpoint" in step.values for step in told] == [False, False, False, True, False]
    assert told[1].values["seconds/train"] == 0.25
    assert told[1].values["tokens_per_s"] == 100.0 / told[1].values["seconds/step"]


def test_trainers_are_idle_while_a_step_waits_for_samples_and_their_rewards():
    told = []
    log, watch = StepLog(Events(told.append)), Stopwatch()
    watch.add_all({"seconds/generate": 0.5, "seconds/reward": 0.25, "seconds/train": 3.0})
    log.complete("rl", 1, {}, watch, 100.0)
    log.complete("sft", 1, {}, Stopwatch(), 100.0)
    row = told[0].values
    assert row["trainers/idle_share"] == 0.75 / row["seconds/step"]
    assert "trainers/idle_share" not in told[1].values
