"""What TensorBoard reads of a run that was resumed."""

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import SessionLog

from slime.compose.compose import examine
from slime.types import TrackedRun
from slime_observers.tensorboard.tracker import TensorBoard
from slime_testing.plugins import check_tracker


def log_steps(folder, stage, steps, resumed=None):
    tracker = TensorBoard()
    tracker.start(TrackedRun("it", folder, {}))
    if resumed:
        tracker.resume(*resumed)
    for step in steps:
        tracker.log(stage, step, 1.8e9 + step, {"rollout/reward_mean": step / 10})
    tracker.finish("finished")


def events(folder):
    """Every event that TensorBoard reads under `folder`, in the order in which its files were begun; it has scalars as
    tensors."""

    def begun(path):  # events.out.tfevents.SECONDS.HOST.PID.NUMBER: 10 comes behind 9
        name = path.name.split(".")
        return int(name[3]), int(name[-1])

    for path in sorted(folder.rglob("*tfevents*"), key=begun):
        yield from EventFileLoader(str(path)).Load()


def test_it_keeps_the_contract(tmp_path):
    check_tracker("tensorboard", tmp_path)
    found = list(events(tmp_path / "tensorboard/rl"))
    assert {event.step for event in found} == {0, 1, 2}
    [first, *others] = [value for event in found for value in event.summary.value if "samples" in value.tag]
    assert [value.tag for value in (first, *others)] == ["rollout/samples"] * 4
    assert first.metadata.plugin_data.plugin_name == "text"
    best, worst = first.tensor.string_val[0].decode().split("\n\n**")
    assert best.startswith(
        "**prompt 0/7**: reward 1.000, digits 0.500, 2 tokens, completed, weights 3\n\n    user: 3 + 5\n"
    )
    assert best.endswith("\n    It is\n    8")
    assert "\n    <b>7</b>" in worst


@pytest.mark.parametrize(("words", "chosen"), [([], {"tensorboard": {}}), (["observe.trackers.tensorboard=false"], {})])
def test_it_is_on_unless_it_is_switched_off(words, chosen):
    assert examine(["+model=glm4-tiny", "+cluster=local", *words]).cfg.observe.trackers == chosen


def test_tensorboard_has_every_value_and_hides_what_runs_again(tmp_path):
    folder = tmp_path / "tensorboard"
    log_steps(tmp_path, "sft", [1, 2])
    log_steps(tmp_path, "rl", [1, 2, 3], resumed=("sft", 2))
    log_steps(tmp_path, "rl", [2, 3], resumed=("rl", 1))
    assert {path.name for path in folder.iterdir()} == {"sft", "rl"}
    rl = list(events(folder / "rl"))
    values = [(event.step, value.tag, value.tensor.float_val[0]) for event in rl for value in event.summary.value]
    assert values == [(step, "rollout/reward_mean", pytest.approx(step / 10)) for step in (1, 2, 3, 2, 3)]
    starts = [event.step for event in rl if event.session_log.status == SessionLog.START]
    assert starts == [0, 2]


def test_a_session_hides_what_runs_again_in_it(tmp_path):
    tracker = TensorBoard()
    tracker.start(TrackedRun("it", tmp_path, {}))
    for step in (1, 2, 3):
        tracker.log("rl", step, 1.8e9 + step, {"train/loss": 1.0})
    tracker.resume("rl", 1)
    tracker.log("rl", 2, 1.8e9 + 4, {"train/loss": 2.0})
    tracker.finish("finished")
    found = list(events(tmp_path / "tensorboard/rl"))
    assert [event.step for event in found if event.summary.value] == [1, 2, 3, 2]
    assert [event.step for event in found if event.session_log.status == SessionLog.START] == [0, 2]
