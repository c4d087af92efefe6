"""What every test may rely on, however the tests were started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest


def test_a_child_takes_an_interrupt() -> None:
    sleeping = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(sleeping, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
    assert child.returncode == -signal.SIGINT


def test_in_the_background_of_a_script_it_does_too() -> None:
    """Shells have such jobs ignore the signal, and children inherit that."""
    again = [sys.executable, "-m", "pytest", "-q", f"{__file__}::{test_a_child_takes_an_interrupt.__name__}"]
    done = subprocess.run(again, capture_output=True, text=True, preexec_fn=_ignore)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_in_several_processes_a_file_stays_in_one() -> None:
    """Its fixtures would be made in each of them."""
    here = Path(__file__).parent
    files = [here / name for name in ("test_digest.py", "test_errors.py", "test_net.py", "test_lifetime.py")]
    several = ["--numprocesses", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-vv"]
    words = [sys.executable, "-m", "pytest", *several, *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here.parent)
    assert done.returncode == 0, done.stdout
    where = defaultdict(set)
    for process, file in re.findall(r"^\[(gw\d)\] .*PASSED tests/(\w+\.py)::", done.stdout, re.M):
        where[file].add(process)
    assert where.keys() == {file.name for file in files}, done.stdout
    assert all(len(processes) == 1 for processes in where.values()), where
    assert set().union(*where.values()) == {"gw0", "gw1"}


SHARING = """
import os, pytest

@pytest.fixture(scope="session")
def finished():
    print("made in", os.getpid(), flush=True)

def test_one(finished):
    pass

def test_another():
    pass
"""


@pytest.mark.slow
def test_what_a_group_shares_is_made_once(tmp_path: Path) -> None:
    """In several files, whose other tests may run elsewhere."""
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(SHARING)
    here = Path(__file__).parents[1]
    options = ["-c", here / "pyproject.toml", "-p", "conftest", "--rootdir", tmp_path, "-rP"]
    several = ["--numprocesses", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    words = [sys.executable, "-m", "pytest", *options, *several, tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here)
    assert "6 passed" in done.stdout, done.stdout
    assert len({*re.findall(r"made in (\d+)", done.stdout)}) == 1, done.stdout


LIMITED = """
import os, subprocess, sys, time, pytest

CHILD = "import time\\nwhile time.process_time() < 1: pass"

@pytest.mark.timeout(2.5)
def test_that_works():
    subprocess.run([sys.executable, "-c", CHILD], check=True)

@pytest.mark.timeout(2.5)
def test_that_waits():
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_limit_counts_no_time_without_a_core(tmp_path: Path) -> None:
    """Four programs share a core: a second of work takes four, which is longer than the limit. Who waits for something
    else fails, although pytest itself stood in line for a while."""
    (tmp_path / "test_limited.py").write_text(LIMITED)
    here = Path(__file__).parents[1]
    options = ["-c", here / "pyproject.toml", "-p", "conftest", "--rootdir", tmp_path]
    with ExitStack() as stack:
        for _ in range(3):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=_on_one_core)
            stack.enter_context(spinning)
            stack.callback(spinning.kill)
        words = [sys.executable, "-m", "pytest", *options, tmp_path / "test_limited.py"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=here, preexec_fn=_on_one_core)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert re.search(r"___ test_that_waits ___.*Failed: Timeout \(>2.5s\)", done.stdout, re.S)


FAILING = """
import ast, gc

class Parsing:
    def __init__(self):
        self.itself = self

    def __del__(self):
        ast.parse("1")

def test_that_fails():
    gc.collect()
    Parsing()
    gc.set_threshold(20_000)  # fewer than the nodes of this module
    assert False

NUMBERS = [
{lines}
]
"""


def test_what_is_collected_while_a_failure_is_told_may_parse(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING.format(lines="    (1, 2, 3),\n" * 10_000))
    here = Path(__file__).parents[1]
    options = ["-c", here / "pyproject.toml", "-p", "conftest", "--rootdir", tmp_path]
    words = [sys.executable, "-m", "pytest", *options, tmp_path / "test_failing.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here)
    assert "1 failed" in done.stdout, done.stdout


LATE = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("which", range(2))
def test_that_is_slow(which):
    pass

def test_that_is_fast():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(("until", "passed"), [(-1, "1 passed, 2 skipped"), (3600, "3 passed")])
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_slow_test_begins_in_time_or_is_told_of(tmp_path: Path, until: int, passed: str, processes: str) -> None:
    (tmp_path / "test_late.py").write_text(LATE)
    here = Path(__file__).parents[1]
    options = ["-c", here / "pyproject.toml", "-p", "conftest", "--rootdir", tmp_path, "--numprocesses", processes]
    words = [sys.executable, "-m", "pytest", *options, tmp_path / "test_late.py"]
    limit = {"SLOW_TESTS_UNTIL": str(time.time() + until)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=here, env={**os.environ, **limit})
    assert done.returncode == 0, done.stdout
    assert passed in done.stdout
    assert ("NOT RUN" in done.stdout) == (until < 0)
    assert ("  2 of test_late.py" in done.stdout) == (until < 0)


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
