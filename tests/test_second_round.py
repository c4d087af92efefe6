"""What `make test` makes of tests that fail, once or always: its own recipe, in a small checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within
from tests import second_round
from tests.second_round import MOST, run_alone, without_group

pytestmark = pytest.mark.slow  # whole sessions of tests
ROOT = Path(__file__).parents[1]
FIRST = """
import os, sys, time, pytest

def first(name):
    \"\"\"Whether nobody asked for this name before, in this process or another.\"\"\"
    try:
        os.close(os.open(f"asked-{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    print("this is the first" if name else "")
    return True
"""
FLAKY = f"""{FIRST}
def test_call():
    print("seen before:", again := not first("call"))
    assert again
"""
KINDS = f"""{FLAKY}
@pytest.mark.parametrize("text", ["a::b", "[c]", "d@e", "@f", "$HOME ' \\" `", "-k", "ü"])
@pytest.mark.xdist_group("together")
def test_odd(text):
    assert text not in ("[c]", "@f", "$HOME ' \\" `") or not first(f"odd-{{text[:2]}}")

def test_worker():
    if first("worker"):
        os._exit(1)

@pytest.fixture
def begun():
    assert not first("begun")

@pytest.fixture
def ended():
    yield
    assert not first("ended")

def test_setup(begun):
    pass

def test_teardown(ended):
    pass

@pytest.mark.timeout(0.5)
def test_limit():
    if first("limit"):
        time.sleep(60)
"""
MEASURED = f"""{FLAKY}
def test_measured():
    sys.path.insert(0, "core/slime")
    import measured
"""
TWICE = f"""{FLAKY}
def test_twice():
    print("twice:", first("twice"))
    assert "never" == "so"

def test_skipped():
    if not first("skipped"):
        pytest.skip("no second time")
    assert False

def test_silent():
    if not first("silent"):
        os._exit(0)
    assert False
"""
MANY = f"""{FIRST}
@pytest.mark.parametrize("number", range(3))
def test_many(number):
    assert not first(f"{{__name__}}-{{number}}")
"""
DYING = f"""{FIRST}
@pytest.mark.parametrize("number", range(8))
def test_dying(number):
    if first(str(number)):
        os._exit(1)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the recipe needs of this one, with neither core nor tests."""
    for name in (
        "Makefile",
        "pyproject.toml",
        "conftest.py",
        "tests/budgets.toml",
        "tests/day.toml",
        "tests/durations.toml",
        "tests/floors.py",
        "tests/second_round.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for folder in ("core/slime", "plugins"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def make_test(checkout: Path, tests: str, *variables: str, num_files: int = 1) -> tuple[int, str]:
    """Exit code and output of `make test`, with these tests in each of `num_files` files; it sets nothing up."""
    for number in range(num_files):
        (checkout / f"tests/test_it{number or ''}.py").write_text(tests)
    words = ["make", "--old-file=.venv/dev", "COMPILE_OURS=true", "TEST_PROCESSES=1", *variables, "test"]
    outer = ("SLIPCOVER_", "PYTEST_", "MAKE", "MFLAGS")  # of the `make test` that these tests may be part of
    mine = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    done = run_within(120, words, check=False, cwd=checkout, env=mine, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def block(printed: str, title: str) -> tuple[str, str]:
    """Both outputs of a test."""
    [text] = re.findall(
        rf"^{re.escape(title)}\n(.*?)\n\n(?:FLAKY:|FAILED:|\d+ (?:failed|passed))", printed, re.M | re.S
    )
    first, again = text.removeprefix("=== the first time: ").split("\n=== once more, alone: ")
    return first, again


def test_what_passes_the_second_time_is_flaky_and_refuses_nothing(checkout: Path) -> None:
    code, printed = make_test(checkout, KINDS, "TEST_PROCESSES=2")
    assert code == 0, printed
    why = {
        "call": "assert again",
        "odd[[c]]": "assert ",
        "odd[@f]": "assert ",
        "odd[$HOME ' \" `]": "assert ",
        "worker": "crashed while running",
        "setup": "assert not first",
        "teardown": "assert not first",
        "limit": "Timeout (>0.5s)",
    }
    assert len(re.findall("^FLAKY: ", printed, re.M)) == len(why), printed
    for name, words in why.items():
        first, again = block(printed, f"FLAKY: tests/test_it.py::test_{name}")
        assert first.startswith("failed")
        assert words in first
        assert again.startswith("passed")
    first, again = block(printed, "FLAKY: tests/test_it.py::test_call")
    assert "--- Captured stdout call\nthis is the first\nseen before: False" in first
    assert again == "passed\n--- Captured stdout call\nseen before: True"
    assert printed.endswith("\n12 passed, counted over both rounds\n8 flaky tests: mend them first\n")
    assert (
        "no floors: the lines that a process ran are lost, as it crashed in tests/test_it.py::test_worker\n" in printed
    )


def test_many_tests_of_few_files_run_again(checkout: Path) -> None:
    """One fault, as a process group that a file leaves behind, fails every test of the next."""
    code, printed = make_test(checkout, MANY, "TESTS=tests", num_files=MOST)
    assert code == 0, printed
    assert f"\n{3 * MOST} flaky tests: mend them first\n" in printed


def test_what_does_not_pass_the_second_time_refuses(checkout: Path) -> None:
    code, printed = make_test(checkout, TWICE, "TESTS=tests")
    assert code != 0, printed
    first, again = block(printed, "FAILED: tests/test_it.py::test_twice")
    for output, number in ((first, "True"), (again, "False")):
        assert output.startswith("failed")
        assert "assert 'never' == 'so'" in output
        assert f"twice: {number}" in output
    assert block(printed, "FAILED: tests/test_it.py::test_skipped")[1].startswith("skipped")
    assert block(printed, "FAILED: tests/test_it.py::test_silent")[1] == "not ended"
    assert block(printed, "FLAKY: tests/test_it.py::test_call")[1].startswith("passed")
    assert "\n3 failed, 1 passed, counted over both rounds\n1 flaky tests: mend them first\n" in printed


@pytest.mark.parametrize(
    ("tests", "num_files", "why"),
    [
        (f"{FLAKY}\nimport nowhere", 1, "ModuleNotFoundError"),
        (MANY, MOST + 1, f"tests of {MOST + 1} files failed: more than {MOST} are no flakes"),
        (DYING, 1, "not every test ran"),
        ("", 1, "no tests ran"),
    ],
    ids=["import", "many", "dying", "none"],
)
def test_what_is_no_flake_is_not_run_again(checkout: Path, tests: str, num_files: int, why: str) -> None:
    code, printed = make_test(checkout, tests, "TESTS=tests", num_files=num_files)
    assert code != 0, printed
    assert why in printed
    assert "once more, alone" not in printed
    assert "FLAKY" not in printed


@pytest.mark.parametrize(
    ("unused", "compared"),
    [
        (0, r"^core/slime +100\.0 % +floor "),
        (9, r"^core/slime: \d+\.\d % of its lines are run by tests, under its floor "),
    ],
    ids=["kept", "missed"],
)
def test_floors_are_compared_where_tests_failed_too(checkout: Path, unused: int, compared: str) -> None:
    lines = ["def unused():", *["    print()"] * unused, "    print()"] if unused else ["print()"]
    (checkout / "core/slime/measured.py").write_text("\n".join(lines))
    code, printed = make_test(checkout, MEASURED)
    assert re.search(compared, printed, re.M), printed
    assert (code == 0) == (not unused)
    assert "1 failed, 1 passed" in printed
    assert ("FLAKY: tests/test_it.py::test_call" in printed) == (not unused)


def test_the_second_round_ends(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "tests/test_it.py").write_text("import time\ndef test_a(): time.sleep(1.5)\ntest_b = test_a\n")
    monkeypatch.chdir(checkout)
    names = ["tests/test_it.py::test_a", "tests/test_it.py::test_b"]
    assert run_alone(names).passed() == names
    monkeypatch.setattr(second_round, "SECONDS", 1)
    late = run_alone(names)
    assert late.passed() == names[:1]
    assert late.code == pytest.ExitCode.TESTS_FAILED


def test_a_slow_test_runs_again_when_no_further_one_begins(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import pytest\n\n@pytest.mark.slow\ndef test_a():\n    pass\n"
    (checkout / "tests/test_it.py").write_text(slow)
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("SLOW_TESTS_UNTIL", "0")
    assert run_alone(["tests/test_it.py::test_a"]).passed() == ["tests/test_it.py::test_a"]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("a.py::b@group", "a.py::b"),
        ("a.py::B::b[c::d]@group", "a.py::B::b[c::d]"),
        ("a.py::b[c@d]", "a.py::b[c@d]"),
        ("of@here/a.py::b", "of@here/a.py::b"),
    ],
)
def test_ids_are_those_without_groups(told: str, name: str) -> None:
    assert without_group(told) == name
