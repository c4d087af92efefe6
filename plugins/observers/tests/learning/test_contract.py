"""The subscriber as slime uses it."""

from pathlib import Path

from slime.events import Events, Step
from slime.types import TrackedRun
from slime_observers.learning.watch import of_run
from slime_testing.plugins import check_subscriber

EQUAL = {"rollout/zero_variance_share": 1.0, "rollout/reward_mean": 0.0, "rollout/reward_std": 0.0}
OTHERS = {"rollout/truncated_share": 0.0, "train/entropy": 0.5}


def test_it_takes_the_events_of_a_run(tmp_path: Path) -> None:
    check_subscriber("learning", tmp_path)


def test_it_stops_a_run_by_its_config(tmp_path: Path) -> None:
    events = Events()
    config = {"observe": {"zero_variance_steps": 2}, "rollout": {"sampling": {"max_response_tokens": 8}}}
    events.subscribe(of_run(TrackedRun("it", tmp_path, config), events))
    events.publish(Step("rl", 1, EQUAL | OTHERS))
    assert events.problem is None
    events.publish(Step("rl", 2, EQUAL | OTHERS))
    assert "equal in 2 steps in a row" in str(events.problem)
