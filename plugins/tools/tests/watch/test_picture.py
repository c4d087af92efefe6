"""`reward.png`."""

import pytest

from plugins.tools.tests.watch.conftest import row
from slime_tools.watch import picture


def test_a_point_is_the_mean_of_steps_and_keeps_the_last():
    steps, values = picture.thinned([(step, step / 100) for step in range(1, 1001)])
    assert (steps[0], steps[-1], len(steps)) == (3, 1000, 334)
    assert values[:2] == pytest.approx([0.02, 0.05])


@pytest.mark.parametrize("count", [0, 1, 3, 12])
def test_the_running_mean_is_the_mean_of_the_last_five(count):
    values = [float(value * value) for value in range(count)]
    expected = [(i, sum(values[max(0, i - 4) : i + 1]) / min(i + 1, 5)) for i in range(count)]
    assert picture.running_mean(list(enumerate(values))) == [(i, pytest.approx(value)) for i, value in expected]


def test_the_reward_s_curves_have_the_steps_of_the_rl_rows():
    rows = [{"stage": "sft", "step": 9, "eval/reward_mean": 0.0}, {"stage": "rl", "step": 0, "eval/reward_mean": 0.4}]
    rows += [row(1), row(2, **{"eval/reward_mean": 0.9})]
    assert picture.reward_curves(rows) == {
        "training prompts, each step": ([1, 2], [0.01, 0.02]),
        "training prompts, running mean": ([1, 2], [0.01, 0.015]),
        "held-out prompts": ([0, 2], [0.4, 0.9]),
    }


def test_a_run_of_the_supervised_stage_alone_has_no_reward_to_show(make_run):
    folder = make_run(0)
    picture.write(folder)
    assert not (folder / "reward.png").exists()
