"""What a run does now, and its warnings."""

import json
import logging

import pytest

from plugins.tools.tests.watch.conftest import row
from slime import events
from slime_tools.watch import diary, facts
from slime_tools.watch.diary import Diary
from slime_tools.watch.view import RunView

log = logging.getLogger("slime.somewhere")


@pytest.fixture
def written(tmp_path):
    made = Diary(tmp_path)
    yield made
    made(events.Ended("finished"))


def now(folder):
    found = json.loads((folder / "logs/now.json").read_text())
    return {name: value for name, value in found.items() if value and name != "time"}


def test_the_file_says_what_the_run_does(written, tmp_path, monkeypatch):
    monkeypatch.setattr(diary, "INTERVAL_S", 1000.0)
    written(events.Starting("starting 1 engine"))
    written(events.Starting())
    assert now(tmp_path) == {"starting": "starting 1 engine"}
    written(events.Ready("ready"))
    written(events.StageBegan("rl", 40))
    written(events.Phase("generate", 1, 32))
    written(events.Phase("generate", 2, 32))  # too soon after the other to be written
    assert now(tmp_path) == {"stage": "rl", "total": 40, "phase": "generate", "done": 1, "of": 32}
    written(events.Phase("train"))
    assert now(tmp_path) == {"stage": "rl", "total": 40, "phase": "train"}
    written(events.Step("rl", 1, {}))
    assert now(tmp_path) == {"stage": "rl", "total": 40}
    written(events.Ended("finished"))
    assert not (tmp_path / "logs/now.json").exists()


def test_warnings_are_kept_and_still_printed(written, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's, which a run does not have
    log.warning("the entropy fell to %g", 0.5)
    log.info("nobody asked")
    log.warning("again")
    log.warning("again")
    assert capfd.readouterr().err == "the entropy fell to 0.5\nagain\nagain\n"
    found = facts.warnings_of(tmp_path)
    assert [(warning["text"], warning["count"]) for warning in found] == [("the entropy fell to 0.5", 1), ("again", 2)]
    written(events.Ended("finished"))
    log.warning("afterwards")
    assert capfd.readouterr().err == "afterwards\n"
    assert len(facts.warnings_of(tmp_path)) == 2


def test_who_prints_warnings_prints_them_once(written, capfd, monkeypatch):
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log.warning("once")
    assert capfd.readouterr().err == "once\n"


def test_what_cannot_be_written_stops_nobody(written, tmp_path):
    (tmp_path / "logs/warnings.jsonl").mkdir()  # as a full disk, an OSError
    log.warning("boom")
    assert list((tmp_path / "logs/warnings.jsonl").iterdir()) == []


def test_what_warns_always_does_not_fill_the_disk(written, tmp_path, monkeypatch):
    monkeypatch.setattr(diary, "MAX_WARNINGS", 3)
    for number in range(9):
        log.warning("number %d", number)
    assert [warning["text"] for warning in facts.warnings_of(tmp_path)] == ["number 0", "number 1", "number 2"]


def test_a_torn_line_of_warnings_is_left_out(tmp_path, make_run):
    folder = make_run(1, rows=[row(2)])
    (folder / "logs").mkdir()
    (folder / "logs/warnings.jsonl").write_text('{"time": 1.0, "text": "whole"}\n{"time": 2.0, "te')
    assert [warning["text"] for warning in facts.warnings_of(folder)] == ["whole"]


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}, {"answer": "2"}),
        ({"prompt": "1+1=", "chosen": "2", "rejected": "3"}, {"chosen": "2", "rejected": "3"}),
    ],
)
def test_what_supervised_steps_show_the_model_is_kept(tmp_path, row, answers):
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 9)
    written = Diary(tmp_path, str(tmp_path / "rows.jsonl"))
    written(events.StageBegan("sft", 40))
    view = RunView(tmp_path)
    assert view.told({})["samples"]["names"] == ["demonstrations"]
    first, *others = view.samples("demonstrations")["cards"]
    assert len(others) == diary.NUM_ROWS - 1
    assert first["asked"] == [{"role": "user", "text": "1+1=", "calls": []}]
    assert {each["heading"]: each["turns"][0]["text"] for each in first["answers"]} == answers
    written(events.Ended("finished"))


def test_rows_that_cannot_be_read_again_stop_nothing(tmp_path):
    written = Diary(tmp_path, str(tmp_path / "gone.jsonl"))
    written(events.StageBegan("sft", 40))
    assert now(tmp_path) == {"stage": "sft", "total": 40}
    written(events.Ended("finished"))
