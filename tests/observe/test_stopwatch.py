import time

import pytest

from slime.observe.stopwatch import Stopwatch


def test_phases_and_other_add_up_to_the_wall_time():
    watch = Stopwatch()
    for _ in range(2):
        with watch("generate"):
            time.sleep(0.02)
    time.sleep(0.03)
    watch.add("logprobs", 0.01)
    seconds = watch.seconds()
    assert list(seconds) == ["seconds/generate", "seconds/logprobs", "seconds/other", "seconds/step"]
    assert seconds["seconds/generate"] >= 0.04  # two blocks of 0.02 s; sleep never returns early
    assert seconds["seconds/other"] >= 0.02  # 0.03 s outside any phase, 0.01 s of which was claimed as logprobs
    parts = seconds["seconds/generate"] + seconds["seconds/logprobs"] + seconds["seconds/other"]
    assert parts == pytest.approx(seconds["seconds/step"])


def test_seconds_among_metrics_are_counted_and_other_metrics_are_not():
    watch = Stopwatch()
    watch.add("train", 0.5)
    watch.add_all({"loss": 7.0, "seconds/train": 0.25, "seconds/logprobs": 0.125})
    seconds = watch.seconds()
    assert (seconds["seconds/train"], seconds["seconds/logprobs"]) == (0.75, 0.125)
    assert "seconds/loss" not in seconds


def test_a_phase_that_raises_is_counted_and_closed():
    watch = Stopwatch()
    with pytest.raises(KeyError), watch("train"):
        {}[time.sleep(0.01)]
    with watch("publish"):
        pass
    assert watch.seconds()["seconds/train"] >= 0.01


def test_phases_do_not_nest():
    watch = Stopwatch()
    with watch("generate"), pytest.raises(AssertionError, match="'reward' inside phase 'generate'"), watch("reward"):
        pass
