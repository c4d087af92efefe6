"""The samples of a run: what is written of a step, how much of a big one, and that it reads back."""

import itertools
import json
import tracemalloc
from datetime import date
from decimal import Decimal

import orjson
import pytest

from slime.errors import SlimeError
from slime.events import Evaluation, SampleRows, Samples
from slime.segments import Segment, WeightSpan
from slime.types import Decision, Group, Prompt, Sample, Status, Verdict
from slime_observers.samples.log import SampleLog
from slime_observers.samples.rows import read_samples


def group(number: int, *verdicts: Verdict, response: str = "8") -> Group:
    prompt = Prompt(f"0/{number}", ({"role": "user", "content": "3 + 5"},), (1, 2), label=8)
    return Group(
        prompt,
        [
            Sample(
                prompt,
                index,
                [Segment(prompt.tokens, [7, 9], [-0.5, -0.1], [1, 1], [WeightSpan(3, 2)])],
                Status.COMPLETED,
                response,
                verdict,
            )
            for index, verdict in enumerate(verdicts)
        ],
    )


def test_every_sample_of_a_small_step_is_kept(tmp_path) -> None:
    good, bad = group(1, Verdict.of(1.0, digits=0.5), Verdict.timeout("10 s")), group(2, Verdict.of(0.0))
    SampleLog(tmp_path, 1)(Samples(12, [], [(bad, Decision(False, "all_wrong")), (good, Decision(True))]))
    first, second, third = read_samples(tmp_path / "step-000012.jsonl")
    assert first == {
        "prompt": "0/1",
        "sample": 0,
        "reward": 1.0,
        "verdict": "value",
        "reason": "",
        "parts": {"digits": 0.5},
        "filter": "kept",
        "finish": "completed",
        "num_tokens": 2,
        "weight_versions": [[3, 2]],
        "label": 8,
        "messages": [{"role": "user", "content": "3 + 5"}],
        "response": "8",
    }
    assert (second["reward"], second["verdict"], second["reason"]) == (None, "timeout", "10 s")
    assert (third["prompt"], third["filter"]) == ("0/2", "all_wrong")


def test_a_big_step_keeps_whole_groups_spread_over_all(tmp_path) -> None:
    groups = [group(number, Verdict.of(1.0), Verdict.of(0.0), response="x" * 1000) for number in range(100, 200)]
    SampleLog(tmp_path, 5)(Evaluation(4, groups, {}))
    path = tmp_path / "eval-000004.jsonl"
    assert 0.9 * 50_000 < path.stat().st_size <= 50_000
    rows = read_samples(path)
    kept = [int(row["prompt"].removeprefix("0/")) for row in rows[::2]]
    assert [row["sample"] for row in rows] == [0, 1] * len(kept)
    assert min(kept) < 110
    assert max(kept) > 190
    assert "filter" not in rows[0]


def test_of_one_group_that_is_too_large_a_part_is_kept_and_nothing_if_nothing_is_wanted(tmp_path) -> None:
    verdicts = [Verdict.of(1.0)] * 5
    long = [(group(number, *verdicts, response="x" * (1000 - number)), Decision(True)) for number in (1, 2)]
    SampleLog(tmp_path, 1e-6)(Samples(1, [], long))
    (row,) = read_samples(tmp_path / "step-000001.jsonl")
    assert (row["prompt"], row["sample"]) == ("0/2", 0)
    SampleLog(tmp_path, 0.3)(Samples(3, [], long))
    assert len(read_samples(tmp_path / "step-000003.jsonl")) == 2
    SampleLog(tmp_path, 0)(Samples(2, [], long))
    assert not (tmp_path / "step-000002.jsonl").exists()


def test_a_line_that_is_no_sample_is_named(tmp_path) -> None:
    path = tmp_path / "step-000001.jsonl"
    SampleLog(tmp_path, 1)(Samples(1, [], [(group(1, Verdict.of(1.0, digits=0.5)), Decision(True))]))
    (row,) = read_samples(path)
    damaged: list[object] = [[], None, 3]
    needed = ("prompt", "response", "reward", "finish", "num_tokens", "messages", "weight_versions")
    damaged += [{key: value for key, value in row.items() if key != name} for name in needed]
    damaged += [{**row, name: {"odd": "er"}} for name in (*needed, "parts")]
    damaged += [{**row, "messages": [{"role": "user"}]}, {**row, "weight_versions": [[1]]}]
    for each in damaged:
        path.write_text(json.dumps(row) + "\n" + json.dumps(each) + "\n")
        with pytest.raises(SlimeError, match=r"step-000001\.jsonl:2: this line is not a sample"):
            read_samples(path)


def test_no_more_is_encoded_than_is_kept(tmp_path) -> None:
    """8,192 samples of 20,000 characters: 170 MB as JSON, of which 2 MB are written."""
    response = "x" * 20_000
    groups = [(group(number, *[Verdict.of(1.0)] * 8, response=response), Decision(True)) for number in range(1024)]
    log = SampleLog(tmp_path, 200)
    tracemalloc.start()
    log(Samples(1, [], groups))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1.8e6 < (tmp_path / "step-000001.jsonl").stat().st_size < 2e6
    assert peak < 10e6


def test_the_samples_of_a_long_run_are_bounded_and_spread_over_it(tmp_path) -> None:
    """200 files of 10 kB and 20 of as many, where 1 MB is allowed; the run is resumed in the middle."""
    step = [(group(1, Verdict.of(1.0), response="x" * 9_600), Decision(True))]
    log = SampleLog(tmp_path, 1)
    for number in range(1, 201):
        log = SampleLog(tmp_path, 1) if number == 100 else log
        log(Samples(number, [], step))
        if number % 10 == 0:
            log(Evaluation(number, [each for each, _ in step], {}))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1e6
    steps = sorted(int(path.stem.removeprefix("step-")) for path in tmp_path.glob("step-*"))
    assert len(list(tmp_path.glob("eval-*"))) == 20
    assert len(steps) > 75
    assert (steps[0], steps[-1]) == (1, 200)
    assert max(later - step for step, later in itertools.pairwise(steps)) <= 4


def test_small_files_of_a_long_run_are_bounded_as_well(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("slime_observers.samples.log.MAX_FILES", 10)
    step = [(group(1, Verdict.of(1.0)), Decision(True))]
    log = SampleLog(tmp_path, 1)
    for number in range(1, 101):
        log = SampleLog(tmp_path, 1) if number == 50 else log
        log(Samples(number, [], step))
        if number % 25 == 0:
            log(Evaluation(number, [each for each, _ in step], {}))
    assert len(list(tmp_path.glob("eval-*"))) == 4
    steps = sorted(int(path.stem.removeprefix("step-")) for path in tmp_path.glob("step-*"))
    assert (len(steps), steps[0], steps[-1]) == (6, 1, 100)


def test_evaluations_make_room_when_they_take_more_than_steps(tmp_path) -> None:
    log = SampleLog(tmp_path, 0.1)
    (tmp_path / "notes.jsonl").touch()
    for number in range(1, 31):
        log(Evaluation(number, [group(1, Verdict.of(1.0), response="x" * 4_600)], {}))
    log(Samples(30, [], [(group(1, Verdict.of(1.0)), Decision(True))]))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert {"notes.jsonl", "eval-000001.jsonl", "eval-000030.jsonl", "step-000030.jsonl"} <= set(names)
    assert 15 < len(names) < 25


def test_what_is_kept_is_told_to_trackers(tmp_path) -> None:
    told: list[SampleRows] = []
    log = SampleLog(tmp_path, 0.2, told.append)
    groups = [group(number, Verdict.of(1.0), response="x" * 700) for number in (1, 2, 3)]
    log(Evaluation(0, groups, {}))
    log(Samples(1, [], [(each, Decision(True)) for each in groups]))
    evaluation, step = (each.tables for each in told)
    assert {name: len(rows) for name, rows in (evaluation | step).items()} == {"rollout/samples": 2, "eval/samples": 2}
    assert step["rollout/samples"] == read_samples(tmp_path / "step-000001.jsonl")


def test_what_a_row_of_data_may_hold_is_written_so_that_any_reader_takes_it(tmp_path) -> None:
    """A label, and fields of messages: a table's columns have more kinds of values than JSON."""
    labels = {date(2026, 1, 2): "2026-01-02", float("inf"): "Infinity", Decimal("1.20"): "1.20", b"\xff": "/w==", 8: 8}
    for step, (label, read) in enumerate(labels.items()):
        messages = ({"role": "user", "content": "3 + 5", "at": date(2026, 1, 2), "score": float("nan")},)
        prompt = Prompt("0/1", messages, (1, 2), label=label)
        sample = Sample(prompt, 0, [Segment((1, 2), [7], [-0.5], [1], [WeightSpan(3, 1)])], Status.COMPLETED, "8")
        SampleLog(tmp_path, 1)(Samples(step, [], [(Group(prompt, [sample]), Decision(True))]))
        path = tmp_path / f"step-{step:06d}.jsonl"
        [row] = read_samples(path)
        assert orjson.loads(path.read_bytes()) == row
        assert row["label"] == read
        assert row["messages"] == [{"role": "user", "content": "3 + 5", "at": "2026-01-02", "score": "NaN"}]
