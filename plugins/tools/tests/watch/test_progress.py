"""A run's metrics as they grow: what a reader is sent, bit by bit, is what is there."""

import json
import random

import pytest

from plugins.tools.tests.watch.conftest import lines, row
from slime.errors import SlimeError
from slime_tools.watch.progress import Curves, RunProgress

MAX_POINTS = 400


class Reader:
    """Lays what it is sent over what it has, as the page does."""

    def __init__(self):
        self.cursor, self.steps, self.columns, self.num_sent = "", [], {}, 0

    def take(self, curves):
        part = curves.since(self.cursor)
        if part is None:
            return
        keep = part["from"]
        self.cursor, self.steps = part["cursor"], self.steps[:keep] + part["steps"]
        self.columns = {name: self.columns.get(name, [])[:keep] + new for name, new in part["columns"].items()}
        self.num_sent += len(part["steps"])


@pytest.mark.parametrize("num_steps", [1, 399, 401, 3000])
def test_bit_by_bit_a_reader_gets_what_another_gets_at_once(num_steps):
    curves, reader, seldom = Curves(MAX_POINTS), Reader(), random.Random(num_steps)
    for step in range(1, num_steps + 1):
        more = {"eval/reward_mean": step / 2} if step % 10 == 0 else {}
        curves.add(row(step, **more))
        if seldom.random() < 0.3:
            reader.take(curves)
    reader.take(curves)
    at_once = Reader()
    at_once.take(curves)
    assert (reader.steps, reader.columns) == (at_once.steps, at_once.columns)
    assert curves.since(reader.cursor) is None
    assert len(reader.steps) <= MAX_POINTS
    assert reader.steps[-1] == num_steps
    assert reader.num_sent <= 4 * num_steps + 4 * MAX_POINTS


def test_a_point_is_the_mean_of_its_steps():
    curves = Curves(MAX_POINTS)
    for step in range(1, 1001):
        curves.add(row(step))
    part = curves.since("")
    assert part["steps"][:2] == [3, 7]  # four steps a point: 0 (which has no row) to 3, 4 to 7
    assert part["columns"]["rollout/reward_mean"][:2] == [0.02, 0.055]


def test_a_peak_of_one_step_is_the_largest_value_of_its_point():
    curves = Curves(MAX_POINTS)
    for step in range(1, 1001):
        curves.add(row(step, **{"train/grad_norm": 1000.0 if step == 777 else 1.0}))
    for most in (400, 50):
        part = curves.since("", most)
        at = next(at for at, end in enumerate(part["steps"]) if end >= 777)
        assert len(part["steps"]) <= most
        assert (part["lows"]["train/grad_norm"][at], part["highs"]["train/grad_norm"][at]) == (1.0, 1000.0)
        assert part["columns"]["train/grad_norm"][at] == pytest.approx(
            1 + 999 / (part["steps"][1] - part["steps"][0]), 1e-5
        )
    few = Curves(MAX_POINTS)
    few.add(row(1))
    assert "highs" not in few.since("")


@pytest.mark.parametrize("most", [37, 100])
def test_fewer_points_and_some_names_bit_by_bit_are_those_at_once(most):
    curves, cursor, steps, columns = Curves(MAX_POINTS), "", [], {}
    for step in range(1, 701):
        curves.add(row(step))
        if step % 7 == 0 and (part := curves.since(cursor, most, ["seconds/*", "rollout/reward_mean"])):
            cursor, keep = part["cursor"], part["from"]
            steps = steps[:keep] + part["steps"]
            columns = {name: columns.get(name, [])[:keep] + new for name, new in part["columns"].items()}
    at_once = curves.since("", most, ["seconds/*", "rollout/reward_mean"])
    assert (steps, columns) == (at_once["steps"], at_once["columns"])
    assert columns.keys() == {"rollout/reward_mean", "seconds/step", "seconds/generate", "seconds/train"}
    assert "train/logprob_diff_mean" in at_once["names"]
    assert len(steps) <= most


def test_tokens_a_second_are_a_mean_without_the_time_of_evaluations(make_run):
    rows = [row(step, tokens_per_s=100.0) for step in (1, 2)]
    rows.append(row(3, **{"tokens_per_s": 20.0, "seconds/step": 10.0, "seconds/eval": 8.0}))
    progress = RunProgress(make_run(0, rows=rows))
    progress.read()
    head = progress.head({"sft": None, "rl": 3}, running=True)
    assert (head["tokens"], head["tokens_per_s"]) == (600.0, 100.0)
    assert progress.stages["rl"].curves.since("")["columns"]["seen/tokens"] == [200.0, 400.0, 600.0]


def test_what_is_not_a_number_leaves_a_gap_and_what_a_step_did_not_spend_is_0():
    curves = Curves()
    curves.add({"stage": "rl", "step": 0, "eval/reward_mean": 0.5, "seconds/eval": 9.0})
    curves.add(row(1, **{"train/kl": float("nan"), "filter/drop/equal": 3.0}))
    curves.add(row(2, **{"train/kl": float("inf"), "seconds/eval": 4.0}))
    columns = curves.since("")["columns"]
    assert columns["train/kl"] == [None, None, None]
    assert columns["eval/reward_mean"] == [0.5, None, None]
    assert columns["seconds/eval"] == [None, 0.0, 4.0]
    assert columns["filter/drop/equal"] == [None, 3.0, 0.0]


def test_only_new_lines_are_read_and_a_torn_one_waits(make_run):
    folder = make_run(3)
    progress = RunProgress(folder)
    progress.read()
    assert (progress.stage, progress.stages["rl"].step) == ("rl", 3)
    line = json.dumps(row(4)) + "\n"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line[:20])
    progress.read()
    assert progress.stages["rl"].step == 3
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line[20:])
    progress.read()
    assert progress.stages["rl"].step == 4
    assert progress.stages["rl"].curves.since("")["steps"] == [1, 2, 3, 4]


def test_a_damaged_line_is_named_by_its_number_also_where_it_comes_later(make_run):
    folder = make_run(3)
    progress = RunProgress(folder)
    progress.read()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row(4)) + "\nnonsense\n")
    with pytest.raises(SlimeError, match=r"metrics.jsonl:6: this line is not a row"):
        progress.read()


def test_a_run_that_was_resumed_is_read_again(make_run):
    """Its steps behind the checkpoint run again: the file is another one."""
    folder = make_run(9)
    progress = RunProgress(folder)
    progress.read()
    cursor = progress.stages["rl"].curves.since("")["cursor"]
    again = folder / "again"
    again.write_text(lines([row(1), row(2, **{"rollout/reward_mean": 0.7})]))
    again.rename(folder / "metrics.jsonl")
    progress.read()
    part = progress.stages["rl"].curves.since(cursor)
    assert (part["from"], part["columns"]["rollout/reward_mean"]) == (0, [0.01, 0.7])
    assert progress.stages.keys() == {"rl"}


def test_the_time_left_is_that_of_the_latest_steps_with_their_checkpoints(make_run):
    slow = [row(step, **{"seconds/step": 50.0}) for step in range(1, 6)]
    quick = [row(step, **{"seconds/checkpoint": 1.0}) for step in range(6, 26)]
    progress = RunProgress(make_run(0, rows=slow + quick))
    progress.read()
    totals = {"sft": 1, "rl": 125}
    head = progress.head(totals, running=True)
    assert (head["step_seconds"], head["seconds_left"], head["seconds"]) == (3.0, 300.0, 310.0)
    assert "seconds_left" not in progress.head(totals, running=False)
    assert head["results"]["reward"] == [(1, 0.01), (25, 0.25)]
