"""Work in a process aside: real processes that hang, take all memory, crash, or go well."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slime import aside
from slime.errors import SlimeError

FAULT = SlimeError("it is bad", where="here", todo="Mend it.")


def first_step(work: Callable[[], object], seconds: float = 1.0) -> Callable[[], Iterator[SlimeError]]:
    """Says what it does, does it, and finds nothing."""

    def find() -> Iterator[SlimeError]:
        aside.step(seconds, FAULT)
        work()
        yield from ()

    return find


def spin() -> None:
    while True:
        pass


def catastrophe() -> object:
    return re.match(r"(a+)+$", "a" * 60 + "b")  # the loop is in C, and no signal's handler runs in it


def quietly(work: Callable[[], object]) -> Callable[[], object]:
    """Without pytest's handler, which prints stacks."""
    return lambda: (faulthandler.disable(), work())


class Finalized:
    """Leaves a file, called after the process that collects it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.itself: Finalized | None = None

    def __del__(self) -> None:
        (self.folder / str(os.getpid())).touch()


def recurse() -> None:
    recurse()


DEADLY = {
    "python": (spin, "it takes more than 1 s of a processor"),
    "regex": (catastrophe, "it takes more than 1 s of a processor"),
    "power": (lambda: 9 ** (9**9), "it takes more than 1 s of a processor"),
    "memory": (lambda: bytearray(2**40), "it takes more than 4 GiB or never ends"),
    "recursion": (recurse, "it takes more than 4 GiB or never ends"),
    "abort": (quietly(os.abort), "the process that looked at it was ended by SIGABRT"),
    "crash": (quietly(lambda: ctypes.string_at(0)), "the process that looked at it was ended by SIGSEGV"),
    "exit": (lambda: os._exit(7), "the process that looked at it ended with exit code 7"),
}


@pytest.mark.parametrize(("work", "reason"), DEADLY.values(), ids=DEADLY)
def test_what_does_not_come_back_is_told_in_a_line(work: Callable[[], object], reason: str) -> None:
    began = time.process_time()
    [problem] = aside.problems_found_aside(first_step(work))
    assert str(problem) == f"here: it is bad: {reason}. Mend it."
    assert time.process_time() - began < 1, "the work was not done here"


def test_what_waits_for_ever_is_told_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "WAIT_S", 0.5)
    [problem] = aside.problems_found_aside(first_step(lambda: time.sleep(600)))
    line = test_what_waits_for_ever_is_told_with_its_place.__code__.co_firstlineno + 2
    assert str(problem) == f"here: it is bad: nothing came within 0.5 s (it stands in {__file__}:{line}). Mend it."


def test_what_computes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own; the control, which sleeps, is the test above."""
    monkeypatch.setattr(aside, "WAIT_S", 0.2)
    code = "import time\nwhile time.process_time() < 1: pass"
    assert not aside.problems_found_aside(first_step(lambda: subprocess.run([sys.executable, "-c", code], check=True)))


def test_garbage_of_this_process_is_not_collected_aside(tmp_path: Path) -> None:
    """The control is the end of the test, which collects it here."""
    gc.collect()
    cycle = Finalized(tmp_path)
    cycle.itself = cycle
    del cycle

    def find() -> Iterator[SlimeError]:
        aside.step(1, FAULT)
        gc.collect()
        yield from ()

    assert not aside.problems_found_aside(find)
    assert not [*tmp_path.iterdir()]
    gc.collect()
    assert [file.name for file in tmp_path.iterdir()] == [str(os.getpid())]


def test_what_is_found_comes_over_whole() -> None:
    found = [SlimeError("a\u202eb", where="\ud800", todo="c\n"), SlimeError("x" * 200_000, todo="d")]
    assert [*map(str, aside.problems_found_aside(lambda: found))] == [*map(str, found)]


def test_what_is_raised_is_found() -> None:
    def find() -> Iterator[SlimeError]:
        yield SlimeError("first", todo="a")
        raise SlimeError("second", todo="b")

    assert [problem.what for problem in aside.problems_found_aside(find)] == ["first", "second"]


def test_a_mistake_of_ours_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        aside.problems_found_aside(first_step(lambda: 1 // 0))


def test_each_step_has_time_of_its_own() -> None:
    def find() -> Iterator[SlimeError]:
        for _ in range(4):
            aside.step(1, FAULT)
            until = time.process_time() + 0.6
            while time.process_time() < until:
                pass
        yield SlimeError("came to its end", todo="-")

    assert [problem.what for problem in aside.problems_found_aside(find)] == ["came to its end"]


def test_nothing_is_bounded_elsewhere() -> None:
    aside.step(0, FAULT)
    until = time.process_time() + 1.5
    while time.process_time() < until:
        pass


def test_an_interrupt_ends_both() -> None:
    code = """
import os, time
from slime import aside
def find():
    print(os.getpid(), flush=True)
    time.sleep(600)
aside.problems_found_aside(find)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
