"""Who is named when something gives no answer: of real processes that stand in different ways."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from slime.cluster.stacks import apart, suspects
from slime.observe.hang import StackDump, look
from tests.observe.test_hang import REGISTERED, start
from tests.waiting import until

__all__ = ["start"]

Start = Callable[..., "subprocess.Popen[str]"]
FIRST, SECOND = "engine-0-scheduler-tp0", "engine-0-node1-scheduler-tp1"
ASLEEP, WAITING = (
    f"in {function} (<string>:{1 + max(n for n, text in enumerate(REGISTERED.splitlines()) if text.strip() == last)})"
    for function, last in (("sleeps", "time.sleep(600)"), ("waits_for_a_lock", "lock.acquire()"))
)


def rank(start: Start, folder: Path, name: str, stands: str) -> int:
    return start(sys.executable, "-c", REGISTERED, str(folder / f"{name}.stack"), stands).pid


def settled(folder: Path) -> list[StackDump]:
    """What is seen once everybody stands where it will stay: a child says that it is ready a moment before."""
    until(lambda: all(each.innermost in (ASLEEP, WAITING) for each in look([], folder)), told=lambda: look([], folder))
    return look([], folder)


def test_a_rank_that_stands_elsewhere_is_named_with_its_host(start: Start, tmp_path: Path) -> None:
    first, second = rank(start, tmp_path, FIRST, "sleeps"), rank(start, tmp_path, SECOND, "waits_for_a_lock")
    seen, host = settled(tmp_path), socket.gethostname()
    assert suspects(seen, []) == "", "both answer the signal"
    ranks = {f"{FIRST} (pid {first} on {host}) {ASLEEP}", f"{SECOND} (pid {second} on {host}) {WAITING}"}
    what, _, told = apart(seen).partition(": ")
    assert (what, set(told.split(", "))) == ("the ranks of engine-0 stand apart", ranks)
    os.kill(second, signal.SIGSTOP)
    told = suspects(look([], tmp_path, answer_s=1.0), [])
    assert f"{SECOND} (pid {second} on {host}) is stopped (T) and writes no stack" in told


def test_ranks_that_stand_together_are_not_blamed(start: Start, tmp_path: Path) -> None:
    for name in (FIRST, SECOND, "engine-1-scheduler-tp0"):
        rank(start, tmp_path, name, "waits_for_a_lock" if name.startswith("engine-1") else "sleeps")
    assert apart(settled(tmp_path)) == ""
