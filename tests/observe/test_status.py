"""`status.json` says how a run stands, whatever ended it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime.events import Ended, Events
from slime.observe import status
from slime.observe.status import STATUS, Status, StatusFile, commit, read
from slime.run_dir import RunDir


@contextmanager
def recorded(run: RunDir) -> Iterator[None]:
    events = Events(StatusFile(run))
    with events.until_ended():
        yield


def end(folder: Path, error: BaseException | None = None) -> None:
    with RunDir.open(folder) as run, recorded(run):
        assert read(folder).state == "running"
        if error:
            raise error


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (SlimeError("boom", where="here", todo="Mend it."), "failed", "here: boom. Mend it."),
        (ZeroDivisionError("division"), "failed", "ZeroDivisionError: division"),
        (KeyboardInterrupt(), "interrupted", ""),
    ],
)
def test_how_a_run_ended(tmp_path: Path, error: BaseException, state: str, said: str) -> None:
    with pytest.raises(type(error)):
        end(tmp_path, error)
    first = read(tmp_path)
    assert (first.state, first.said, first.sessions) == (state, said, 1)
    end(tmp_path)
    last = read(tmp_path)
    assert (last.state, last.said, last.sessions, last.started) == ("finished", "", 2, first.started)


def test_a_killed_run_is_no_running_one(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from slime.observe.status import StatusFile, read
from slime.run_dir import RunDir
with RunDir.open(Path({str(tmp_path)!r})) as run:
    StatusFile(run)
    print(read(run.path).state, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("running\n", -signal.SIGKILL)
    assert read(tmp_path).state == "killed"


def test_a_run_that_ends_while_it_is_looked_at_was_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its status was read, and before its lock is."""
    run, is_held = RunDir.open(tmp_path), status._is_held
    file = StatusFile(run)

    def late(lock: Path) -> bool:
        file(Ended("finished"))
        run.close()
        return is_held(lock)

    monkeypatch.setattr(status, "_is_held", late)
    assert read(tmp_path).state == "finished"


def test_who_looks_at_a_run_keeps_none_from_starting(tmp_path: Path) -> None:
    """A page does so every second, and takes the lock for that."""
    with RunDir.open(tmp_path) as run:
        StatusFile(run)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.001):
            read(tmp_path)

    looking = [threading.Thread(target=look) for _ in range(2)]
    for each in looking:
        each.start()
    try:
        for _ in range(500):
            RunDir.open(tmp_path).close()
    finally:
        ended.set()
        for each in looking:
            each.join()


def test_into_a_directory_that_was_replaced_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = RunDir.open(folder)
    status = StatusFile(run)
    os.rename(folder, tmp_path / "gone")
    folder.mkdir()
    status(Ended("failed", RuntimeError("whatever follows from that")))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("text", [None, "", "[]", "{", json.dumps({"odd": 1})])
def test_of_a_file_that_is_none_nothing_is_known(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / STATUS).write_text(text)
    assert read(tmp_path) == Status()


def test_the_commit_is_that_of_the_checkout() -> None:
    root = Path(__file__).parents[2]
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        pytest.skip("not a checkout")
    assert commit().removesuffix("-dirty") == head.stdout[:12]
