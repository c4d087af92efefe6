"""How long the tests take, by what was measured last: `make test` stays under twelve minutes on two idle cores."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from slime_testing.patience import run_within
from upkeep.durations import TABLE, measured, merged, to_text

ROOT = Path(__file__).parents[1]
DAY_MINUTES = 12
"""What README says of `make test`."""
CORES = 2
LEAST_KNOWN = 0.9
"""The share of files of tests whose seconds are there."""
SECONDS = tomllib.loads(TABLE.read_text())["seconds"]
DAY = tomllib.loads((ROOT / "tests/day.toml").read_text())["day"]


def test_the_sum_of_the_day_is_below_its_limit() -> None:
    """A file that nobody has measured counts as the mean of the others."""
    files = {str(file.relative_to(ROOT)) for kind in ("tests", "plugins") for file in (ROOT / kind).rglob("test_*.py")}
    files = {file for file in files if "third_party/" not in file}
    known = [day for file, (day, _) in SECONDS.items() if file in files]
    assert len(known) >= LEAST_KNOWN * len(files), "measure again: upkeep/durations.py says how"
    minutes = sum(known) * len(files) / len(known) / CORES / 60
    assert 0 < minutes <= DAY_MINUTES, "make long tests faster, or leave slow ones to the night (tests/day.toml)"


@pytest.mark.parametrize("name", [name for each in DAY for name in each["tests"]])
def test_what_the_day_names_is_a_slow_test(name: str) -> None:
    file, _, test = name.partition("[")[0].partition("::")
    source = (ROOT / file).read_text()
    tests = {each.name for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)}
    assert not test or test in tests
    assert "mark.slow" in source


TWO_SLOW = """
import pytest

def test_fast():
    pass

@pytest.mark.slow
@pytest.mark.parametrize("which", ["a", "b"])
def test_slow(which):
    pass
"""


NAMED = {
    "test_unnamed.py": ("", 1),
    "test_case.py": ("test_case.py::test_slow[a]", 2),
    "test_cases.py": ("test_cases.py::test_slow", 3),
    "test_file.py": ("test_file.py", 3),
    "test_half.py": ("test_half.py::test_slo", 1),
}
"""What the day names of a file of three tests, two of them slow, and how many of these then run by day."""


def test_slow_tests_that_the_day_does_not_name_are_for_the_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLOW_TESTS_UNTIL", raising=False)  # of the session that runs this test
    for file in NAMED:
        (tmp_path / file).write_text(TWO_SLOW)
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "tests/durations.toml").write_text("[seconds]\n")
    names = json.dumps([name for name, _ in NAMED.values()])
    (tmp_path / "tests/day.toml").write_text(f"[[day]]\nshows = 'it'\ntests = {names}\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    words = [sys.executable, "-m", "pytest", "-m", "not nightly", "-v", *NAMED]
    done = run_within(100, words, cwd=tmp_path, check=False)
    passed = dict(re.findall(r"^(test_\w+\.py) (\.+) ", done.stdout, re.MULTILINE))
    assert passed == {file: "." * number for file, (_, number) in NAMED.items()}, done.stdout


def test_a_log_changes_what_it_tells_of() -> None:
    reports = [
        {"when": "setup", "nodeid": "tests/test_net.py::a", "keywords": {}, "duration": 1.0},
        {"when": "call", "nodeid": "tests/test_net.py::a", "keywords": {}, "duration": 2.0},
        {"when": "call", "nodeid": "tests/test_run.py::b", "keywords": {"nightly": 1}, "duration": 4.0},
        {"nodeid": "tests/test_run.py", "outcome": "passed"},
    ]
    found = measured(map(json.dumps, reports), busy=2.0)
    assert found == {"tests/test_net.py": (1.5, None), "tests/test_run.py": (None, 2.0)}
    before = {"tests/test_run.py": [5.0, 6.0], "tests/test_gone.py": [1.0, 1.0], "tests/test_files.py": [1.0, 0.0]}
    after = {"tests/test_files.py": (1.0, 0.0), "tests/test_net.py": (1.5, 0.0), "tests/test_run.py": (5.0, 2.0)}
    assert merged(before, found) == after
    assert tomllib.loads(to_text(after))["seconds"] == {file: list(row) for file, row in after.items()}
