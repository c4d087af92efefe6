"""Trackers that are functions or classes of a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime.compose.compose import compose
from slime.errors import SlimeError
from slime.functions.trackers import own_tracker
from slime.types import TrackedRun
from slime_testing.plugins import check_tracker

FILE = """
def show(step, metrics, run, stage):
    with (run.folder / "shown.txt").open("a") as shown:
        print(stage, step, len(metrics), file=shown)

def plain(number, values):
    pass

class Kept:
    def __init__(self, name):
        self.name = name

    def start(self, run):
        self.folder = run.folder

    def resume(self, stage, step): ...

    def log(self, stage, step, time, values):
        (self.folder / self.name).write_text(f"{step}")

    def finish(self, status): ...

def breaks(step, metrics):
    return metrics["loss"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


def test_a_function_gets_the_metrics_of_each_step(file: Path, tmp_path: Path) -> None:
    check_tracker("function", tmp_path, {"path": f"{file}:show"})
    assert [line.split()[:2] for line in (tmp_path / "shown.txt").read_text().splitlines()] == [
        ["rl", number] for number in "0122"
    ]
    check_tracker("function", tmp_path, {"path": f"{file}:plain"})
    check_tracker("function", tmp_path, {"path": f"{file}:Kept", "arguments": {"name": "kept.txt"}})
    assert (tmp_path / "kept.txt").read_text() == "2"


def test_the_page_s_function_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/trackers.md").read_text()
    [(name, code)] = re.findall(r"^`(my_tracker.py)`\n\n```python\n(.*?)^```", page, re.M | re.S)
    [line] = re.findall(r"^    slime (\+model.*my_tracker.*)$", page, re.M)
    (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    cfg = compose(line.split())
    assert cfg.observe.trackers["function"]["path"] == "my_tracker.py:show"
    with pytest.raises(SlimeError, match=r"^observe.trackers.function.path: there is no function 'shw' in .*'show'"):
        compose(line.replace(":show", ":shw").split())


def test_what_it_raises_is_told_with_its_line(file: Path, tmp_path: Path) -> None:
    tracker = own_tracker(path=f"{file}:breaks")
    tracker.start(TrackedRun("run", tmp_path, {}))
    with pytest.raises(SlimeError, match=r"observe.trackers.path: .*my.py:breaks raised KeyError: 'loss' \(my.py:24\)"):
        tracker.log("rl", 1, 0.0, {})
    made = own_tracker(path=f"{file}:Kept", arguments={"name": "kept.txt"})
    with pytest.raises(SlimeError, match=r"my.py:Kept raised AttributeError: .*'folder' \(my.py:19\)"):
        made.log("rl", 1, 0.0, {})
    with pytest.raises(SlimeError, match=r"my.py:Kept raised TypeError: .*'name' \("):
        own_tracker(path=f"{file}:Kept")
