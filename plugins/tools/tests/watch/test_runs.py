"""`slime runs`."""

import dataclasses
import json

import pytest

from plugins.tools.tests.watch.conftest import row
from slime.__main__ import main
from slime.observe.status import STATUS, Status
from slime_tools.watch.runs import age


def say(folder, state, started, said=""):
    (folder / STATUS).write_text(json.dumps(dataclasses.asdict(Status(state, said, started, 1))))


@pytest.fixture
def runs(make_run, tmp_path):
    """Three: an old one with held-out results, a newer one without, and one in a folder that has not begun."""
    old = make_run(3, name="old", rows=[row(4, **{"eval/reward_mean": 0.875}), row(5)])
    (old / "config.yaml").write_text("run: {num_steps: 40}\n")
    new = make_run(2, name="new")
    begun = tmp_path / "group/begun"
    begun.mkdir(parents=True)
    for number, (folder, state) in enumerate(((old, "finished"), (new, "failed"), (begun, "interrupted"))):
        say(folder, state, 1000.0 + number)
    (old / "checkpoints").mkdir()
    (old / "checkpoints/weights").write_bytes(bytes(3 * 2**20))
    (tmp_path / "no-run").mkdir()
    return tmp_path


def test_the_newest_comes_first_with_state_step_result_and_size(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["runs", str(runs)]) == 0
    title, *shown = capsys.readouterr().out.splitlines()
    assert title.split() == ["run", "state", "step", "result", "age", "size"]
    assert [line.split()[0] for line in shown] == ["group/begun", "new", "old"]
    assert shown[0].split()[1:4] == ["interrupted", "-", "-"]
    assert shown[1].split()[1:6] == ["failed", "rl", "2", "reward", "0.020"]
    assert shown[2].split()[1:6] == ["finished", "rl", "5/40", "held-out", "0.875"]
    assert shown[2].endswith("3.0 MiB")


def test_on_a_narrow_terminal_nothing_is_cut(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["runs", str(runs)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "group/begun"
    assert shown[4:6][0] == "old"
    assert shown[5].startswith("  finished  rl 5/40  held-out 0.875  ")


def test_for_programs(runs, capsys):
    assert main(["runs", str(runs), "--json"]) == 0
    begun, _, old = json.loads(capsys.readouterr().out)
    expected = {"name": "old", "state": "finished", "stage": "rl", "step": 5, "total": 40, "started": 1000.0}
    assert expected.items() <= old.items()
    assert (old["measure"], old["result"], old["path"]) == ("held_out", 0.875, str(runs / "old"))
    assert (begun["name"], begun["step"], begun["result"]) == ("group/begun", None, None)


def test_a_name_does_not_steer_the_terminal(make_run, tmp_path, capsys):
    say(make_run(1, name="evil\x1b[2J"), "finished", 1.0)
    assert main(["runs", str(tmp_path)]) == 0
    assert "evil\\x1b[2J" in capsys.readouterr().out


def test_a_folder_without_runs_is_an_error_and_for_programs_an_empty_list(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"slime: {tmp_path}: there are no runs. Name the folder that run.dir named.\n"
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0 s"), (42, "42 s"), (150, "2 min"), (3700, "1 h"), (90000, "1 d"), (10 * 86400, "10 d")],
)
def test_ages(seconds, said):
    assert age(seconds) == said
