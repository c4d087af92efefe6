"""The trace that `slime trace` writes: the rules of the trace-event format, and the times of a run's own files."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slime.__main__ import main
from slime_tools.trace.command import Span, events

ROWS = (
    {"stage": "sft", "step": 1, "time": 1000.5, "train/loss": 3.0, "seconds/train": 0.4, "seconds/step": 0.5},
    {"stage": "rl", "step": 1, "time": 1010.0, "seconds/generate": 6.0, "seconds/train": 2.0, "seconds/step": 9.0},
    {"stage": "rl", "step": 2, "time": 1020.0, "seconds/train": 3.0, "seconds/checkpoint": 1.0, "seconds/step": 9.0},
)
SPANS = {
    "driver": [
        {"name": "request", "begin": 1012.0, "seconds": 2.0, "track": "http://engine", "tokens": 12},
        {"name": "request", "begin": 1013.0, "seconds": 2.0, "track": "http://engine", "tokens": 14},
        {"name": "publish", "begin": 1000.2, "seconds": 0.25, "track": ""},
    ],
    "trainer-0": [
        {"name": "forward", "begin": 1016.5, "seconds": 1.0, "track": "", "micro_batch": 0},
        {"name": "train", "begin": 1016.0, "seconds": 2.0, "track": ""},
    ],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def record(run: Path) -> None:
    (run / "logs/spans").mkdir(parents=True)
    for process, spans in SPANS.items():
        (run / f"logs/spans/{process}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in spans))


def trace(run: Path, *words: str, name: str = "trace.json.gz") -> list[dict[str, Any]]:
    """The events that the command writes, held against the rules of the format."""
    assert main(["trace", str(run), *words]) == 0
    found = json.loads(gzip.decompress((run / name).read_bytes()))
    check(found["traceEvents"])
    return found["traceEvents"]


def check(found: list[dict[str, Any]]) -> None:
    """Google's "Trace Event Format": fields of each phase, ends for begins, and complete events of a thread that
    contain each other or are apart."""
    named = {(each["pid"], each["tid"]) for each in found if each["name"] == "thread_name"}
    opened: dict[tuple[int, str, int], float] = {}
    ends: dict[tuple[int, int], list[float]] = {}
    for each in found:
        assert {"ph", "pid", "tid", "name"} <= each.keys()
        if each["ph"] == "M":
            continue
        assert (each["pid"], each["tid"]) in named
        assert each["ts"] >= 0
        match each["ph"]:
            case "X":
                end, stack = each["ts"] + each["dur"], ends.setdefault((each["pid"], each["tid"]), [])
                while stack and stack[-1] <= each["ts"] + 1:
                    stack.pop()
                assert not stack or end <= stack[-1] + 1, f"{each} ends behind what it began in"
                stack.append(end)
            case "b":
                opened[each["pid"], each["cat"], each["id"]] = each["ts"]
            case "e":
                assert opened.pop((each["pid"], each["cat"], each["id"])) <= each["ts"]
            case other:
                raise AssertionError(f"no phase of ours: {other}")
    assert not opened


def named(found: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Begin and duration in microseconds."""
    return [(each["ts"], each["dur"]) for each in found if each["name"] == name and each["ph"] == "X"]


def test_without_spans_phases_stand_one_after_the_other_in_their_step(run: Path, capsys) -> None:
    found = trace(run)
    assert "phases one after the other: observe.trace=true records more" in capsys.readouterr().out
    assert named(found, "rl 1") == [(1_000_000, 9_000_000)]  # the first step begins at 1000.0
    assert named(found, "generate") == [(1_000_000, 6_000_000)]
    assert named(found, "train") == [(0, 400_000), (7_000_000, 2_000_000), (11_000_000, 3_000_000)]
    assert named(found, "checkpoint") == [(10_000_000, 1_000_000)], "between the steps"


def test_spans_are_drawn_where_processes_recorded_them(run: Path) -> None:
    record(run)
    found = trace(run)
    processes = [each["args"]["name"] for each in found if each["name"] == "process_name"]
    assert processes == ["driver", "http://engine", "trainer-0"]
    assert named(found, "forward") == [(16_500_000, 1_000_000)]
    assert named(found, "generate") == [], "what is only guessed is left out"
    requests = [each for each in found if each["name"] == "request" and each["ph"] == "b"]
    assert [each["args"]["tokens"] for each in requests] == [12, 14]
    [loss] = [each["args"]["train/loss"] for each in found if each["name"] == "sft 1"]
    assert loss == 3.0


def test_one_step_has_what_happened_in_it(run: Path) -> None:
    record(run)
    found = trace(run, "2", name="trace-000002.json.gz")
    assert {each["name"] for each in found if each["ph"] in "Xb"} == {"rl 2", "request", "forward", "train"}
    assert named(found, "rl 2") == [(0, 9_000_000)]


def test_a_torn_last_line_of_spans_is_left_out(run: Path) -> None:
    record(run)
    with (run / "logs/spans/trainer-0.jsonl").open("a") as file:
        file.write('{"name": "tra')
    assert len(named(trace(run), "train")) == 1


def test_the_rules_refuse_what_breaks_them() -> None:
    overlapping = [Span("driver", "main", name, begin, 2.0) for name, begin in (("a", 0.0), ("b", 1.0))]
    with pytest.raises(AssertionError, match="ends behind what it began in"):
        check([*events(overlapping)])
    check([*events([each._replace(many=True) for each in overlapping])])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["7"], "there is no step 7 of rl. There are 1 to 2."),
        (["--output", "nowhere/it.json.gz"], "nowhere: there is no such folder. Make it, or name another --output."),
    ],
)
def test_what_cannot_be_is_one_line(run: Path, words: list[str], said: str, monkeypatch, capsys) -> None:
    monkeypatch.chdir(run)
    assert main(["trace", str(run), *words]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said in shown.err


def test_a_run_without_a_step_says_so(tmp_path: Path, capsys) -> None:
    assert main(["trace", str(tmp_path)]) == 2
    assert "there are no metrics of a step. Name the directory of a run" in capsys.readouterr().err
