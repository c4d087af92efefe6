"""Stacks of real processes that hang in different ways."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from stack_dumps import dumps
from stack_dumps.blame import apart, suspects
from stack_dumps.dumps import look

REGISTERED = """
import re, sys, threading, time
from pathlib import Path
from stack_dumps import dumps

def ready():
    print("ready", flush=True)

def sleeps(entered=ready):
    entered()
    time.sleep(600)

def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    ready()
    lock.acquire()

def holds_the_gil():
    ready()
    re.match("(a+)+$", "a" * 64 + "b")

dumps.register(Path(sys.argv[1]))
asleep = threading.Event()
threading.Thread(target=sleeps, args=[asleep.set], daemon=True).start()
asleep.wait()
globals()[sys.argv[2]]()
"""


def told(pids, folder, **options):
    return "\n\n".join(str(seen) for seen in dumps.look(pids, folder, **options))


@pytest.fixture
def start():
    """Start a child and wait for its first line; all are killed at the end."""
    children = []

    def start(*command):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture
def hung(start, tmp_path):
    return lambda name, how: start(sys.executable, "-c", REGISTERED, str(tmp_path / f"{name}.stack"), how)


@pytest.mark.parametrize("how", ["waits_for_a_lock", "sleeps", "holds_the_gil"])
def test_a_hung_process_says_where_every_thread_stands_and_lives_on(hung, tmp_path, how):
    child = hung("trainer-0", how)
    for _ in range(2):
        text = told([child.pid], tmp_path)
        assert text.startswith(f"trainer-0 (pid {child.pid} on {socket.gethostname()}): ")
        assert text.count("Current thread") == 1
        assert f"in {how}" in text
        assert "in sleeps" in text
    assert child.poll() is None


def test_processes_that_cannot_answer_are_described_and_left_unharmed(start, hung, tmp_path):
    stopped, sleeping, dead = hung("engine-1", "sleeps"), hung("engine-2", "sleeps"), hung("engine-3", "sleeps")
    stranger = start("sh", "-c", "echo ready; sleep 600; true")
    stopped.send_signal(signal.SIGSTOP)
    dead.kill()
    dead.wait()
    started = time.monotonic()
    text = told([dead.pid, stranger.pid], tmp_path, answer_s=3.0)  # the other two are found by their files
    assert time.monotonic() - started < 30
    parts = {int(part.split("pid ")[1].split(" ")[0]): part for part in text.split("\n\n") if "pid " in part}
    assert "engine-1" in parts[stopped.pid]
    assert "no stack; stopped (T)" in parts[stopped.pid]
    assert "in sleeps" in parts[sleeping.pid]
    assert parts[dead.pid] == f"(pid {dead.pid} on {socket.gethostname()}): no stack; gone"
    assert "no stack; sleeping" in parts[stranger.pid]
    assert stranger.poll() is None, "a process that never registered gets no signal"


@pytest.mark.skipif(not shutil.which("py-spy"), reason="py-spy is not installed")
def test_py_spy_reads_the_stack_of_one_that_is_stopped(hung, tmp_path):
    stopped = hung("engine-1", "sleeps")
    stopped.send_signal(signal.SIGSTOP)
    assert "sleeps (<string>:" in told([], tmp_path, answer_s=1.0)


def test_a_reused_process_number_gets_no_signal(start, tmp_path):
    stranger = start("sh", "-c", "echo ready; sleep 600; true")
    (tmp_path / "trainer-0.stack").write_text(f"{stranger.pid} 12345.0\n")
    assert "no stack" in told([stranger.pid], tmp_path, answer_s=0.5)
    assert stranger.poll() is None


def test_registering_in_this_process(tmp_path):
    before = signal.getsignal(signal.SIGUSR1)
    dumps.register(tmp_path / "logs" / "driver.stack")
    assert "test_registering_in_this_process" in told([os.getpid()], tmp_path / "logs")
    assert signal.getsignal(signal.SIGUSR1) == before  # faulthandler's handler lies below Python's


FIRST, SECOND = "engine-0-scheduler-tp0", "engine-0-node1-scheduler-tp1"
ASLEEP, WAITING = (
    f"in {function} (<string>:{1 + max(n for n, text in enumerate(REGISTERED.splitlines()) if text.strip() == last)})"
    for function, last in (("sleeps", "time.sleep(600)"), ("waits_for_a_lock", "lock.acquire()"))
)
LIMIT_S = 240.0


def engine_of(name):
    return name.partition("-scheduler")[0].replace("-node1", "")


def rank(start, folder, name, stands):
    return start(sys.executable, "-c", REGISTERED, str(folder / f"{name}.stack"), stands).pid


def settled(folder):
    """What is seen once everybody stands where it will stay: a child says that it is ready a moment before."""
    deadline, seen = time.monotonic() + LIMIT_S, look([], folder)
    while not all(each.innermost in (ASLEEP, WAITING) for each in seen):
        assert time.monotonic() < deadline, [str(each) for each in seen]
        seen = look([], folder)
    return seen


def test_a_rank_that_stands_elsewhere_is_named_with_its_host(start, tmp_path):
    first, second = rank(start, tmp_path, FIRST, "sleeps"), rank(start, tmp_path, SECOND, "waits_for_a_lock")
    seen, host = settled(tmp_path), socket.gethostname()
    assert suspects(seen, []) == "", "both answer the signal"
    ranks = {f"{FIRST} (pid {first} on {host}) {ASLEEP}", f"{SECOND} (pid {second} on {host}) {WAITING}"}
    what, _, told = apart(seen, engine_of).partition(": ")
    assert (what, set(told.split(", "))) == ("the ranks of engine-0 stand apart", ranks)
    os.kill(second, signal.SIGSTOP)
    told = suspects(look([], tmp_path, answer_s=1.0), [])
    assert f"{SECOND} (pid {second} on {host}) is stopped (T) and writes no stack" in told


def test_ranks_that_stand_together_are_not_blamed(start, tmp_path):
    for name in (FIRST, SECOND, "engine-1-scheduler-tp0"):
        rank(start, tmp_path, name, "waits_for_a_lock" if name.startswith("engine-1") else "sleeps")
    assert apart(settled(tmp_path), engine_of) == ""
