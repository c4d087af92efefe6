"""metrics.jsonl, with kills and full disks made for real."""

import json
import subprocess
import sys

import pytest

from slime.errors import SlimeError
from slime.events import Restored, Step
from slime.observe.metrics import MetricsLog, read_rows
from slime.run_dir import RunDir


@pytest.fixture
def run(tmp_path):
    with RunDir.open(tmp_path / "run") as run:
        yield run


def log_steps(run, stage, steps, resumed=None):
    with MetricsLog(run) as metrics:
        metrics(Restored(resumed))
        for step in steps:
            metrics(Step(stage, step, {"rollout/reward_mean": step / 10}))


def places(run):
    return [(row["stage"], row["step"]) for row in read_rows(run.metrics)]


def test_a_row_is_on_disk_when_its_event_is_handled(run):
    with MetricsLog(run) as metrics:
        metrics(Restored(None))
        metrics(Step("rl", 3, {"rollout/reward_mean": 0.25, "seconds/generate": 2}))
        (row,) = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert row.pop("time") > 1.7e9
    assert row == {"stage": "rl", "step": 3, "rollout/reward_mean": 0.25, "seconds/generate": 2.0}


def test_what_is_not_finite_stays_json_comes_back_and_is_warned_of(run, caplog):
    def strict(constant):
        raise AssertionError(f"{constant} is not JSON")

    with MetricsLog(run) as metrics:
        metrics(Restored(None))
        metrics(Step("rl", 1, {"loss": float("nan"), "a": float("inf"), "b": float("-inf"), "c": 1.0}))
    assert json.loads(run.metrics.read_text(), parse_constant=strict)["loss"] == "NaN"
    (row,) = read_rows(run.metrics)
    assert row["loss"] != row["loss"]
    assert (row["a"], row["b"], row["c"]) == (float("inf"), float("-inf"), 1.0)
    assert "rl step 1: not a finite number: loss = nan, a = inf, b = -inf" in caplog.text


@pytest.mark.parametrize(
    ("resumed", "expected"),
    [
        (None, []),
        (("sft", 1), [("sft", 1)]),
        (("sft", 2), [("sft", 1), ("sft", 2)]),
        (("rl", 1), [("sft", 1), ("sft", 2), ("rl", 0), ("rl", 1)]),
        (("rl", 9), [("sft", 1), ("sft", 2), ("rl", 0), ("rl", 1), ("rl", 2)]),
    ],
)
def test_a_resume_keeps_the_rows_up_to_the_checkpoint(run, resumed, expected):
    log_steps(run, "sft", [1, 2])
    log_steps(run, "rl", [0, 1, 2], resumed=("sft", 2))
    before = places(run)
    log_steps(run, "rl", [], resumed=resumed)
    assert places(run) == expected
    abandoned = run.logs / "metrics-abandoned.jsonl"
    assert expected + [(row["stage"], row["step"]) for row in read_rows(abandoned)] == before


def test_steps_that_run_again_are_not_double(run):
    log_steps(run, "rl", [1, 2, 3])
    log_steps(run, "rl", [2, 3, 4], resumed=("rl", 1))
    assert places(run) == [("rl", 1), ("rl", 2), ("rl", 3), ("rl", 4)]


@pytest.mark.parametrize("torn", ['{"stage": "rl", "st', '{"stage": "rl", "step": 2, "time": 1}'])
def test_a_last_line_torn_by_a_kill_is_forgotten(run, torn):
    log_steps(run, "rl", [1])
    with run.metrics.open("a") as file:
        file.write(torn)
    assert places(run) == [("rl", 1)]
    log_steps(run, "rl", [2], resumed=("rl", 1))
    assert places(run) == [("rl", 1), ("rl", 2)]


@pytest.mark.parametrize("line", ["broken", "\0\0\0", "[]", "{}", '{"stage": "rl"}', '{"stage": [], "step": 1}'])
def test_a_line_that_is_no_row_is_named(run, line):
    run.metrics.write_text(f'{{"stage": "rl", "step": 1}}\n{line}\n{{"stage": "rl", "step": 2}}\n')
    with pytest.raises(SlimeError, match=r"metrics\.jsonl:2: this line is not a row of metrics"):
        read_rows(run.metrics)


def test_a_run_that_returns_to_a_checkpoint_writes_later_steps_again(run):
    with MetricsLog(run) as metrics:
        metrics(Restored(None))
        for step in (1, 2, 3):
            metrics(Step("rl", step, {"rollout/reward_mean": 0.5}))
        metrics(Restored(("rl", 1)))
        assert places(run) == [("rl", 1)]
        metrics(Step("rl", 2, {"rollout/reward_mean": 0.25}))
        run.require_intact()
    assert [row["rollout/reward_mean"] for row in read_rows(run.metrics)] == [0.5, 0.25]
    assert [row["step"] for row in read_rows(run.logs / "metrics-abandoned.jsonl")] == [2, 3]


def test_a_run_whose_metrics_were_deleted_or_replaced_says_so(run):
    """What is written into a deleted file is lost, into another's place it is somebody else's."""
    with MetricsLog(run) as metrics:
        metrics(Restored(None))
        metrics(Step("rl", 1, {"rollout/reward_mean": 0.5}))
        run.require_intact()
        run.metrics.write_bytes(run.metrics.read_bytes())  # the same file still
        run.require_intact()
        copy = run.path / "copy"
        copy.write_bytes(run.metrics.read_bytes())
        copy.rename(run.metrics)
        with pytest.raises(SlimeError, match=r"metrics\.jsonl: it was deleted or replaced while the run was using it"):
            run.require_intact()


FILL = """
import resource, sys
from pathlib import Path
from slime.events import Restored, Step
from slime.observe.metrics import MetricsLog
from slime.run_dir import RunDir
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
metrics = MetricsLog(RunDir.open(Path(sys.argv[1])))
metrics(Restored(None))
for step in range(1000):
    metrics(Step("rl", step, {"rollout/reward_mean": 0.5}))
"""


def test_a_full_disk_is_an_error_and_keeps_every_earlier_row(tmp_path):
    """A file-size limit refuses a write half-way, as a full disk does (EFBIG for ENOSPC)."""
    child = subprocess.run([sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True)
    assert "SlimeError: " + str(tmp_path / "metrics.jsonl") in child.stderr.splitlines()[-1]
    steps = [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")]
    assert steps == list(range(len(steps)))
    assert len(steps) > 30  # 4096 bytes hold some 60 rows of 68 bytes
