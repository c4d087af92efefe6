"""Who is left when a driver has ended, or its block."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from slime.cluster.reaper import GRACE_S, left

DRIVER = """
import subprocess, sys, time
from slime.cluster.reaper import LOOK_S, reaped
start = lambda: print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
start()
with reaped():
    start()
    time.sleep(2 * LOOK_S + 1)  # the reaper starts, and looks
    print("seen", flush=True)
    {inside}
print("on", flush=True)
sys.stdin.read()
"""


def test_a_child_whose_end_nobody_asked_for_is_not_waited_for() -> None:
    child = subprocess.Popen(["true"])
    zombie = psutil.Process(child.pid)
    while zombie.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert left({zombie}, timeout_s=1000) == set()
    child.wait()


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", DRIVER.format(inside=request.param)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as driver:
        yield driver
        driver.kill()


def started(driver: subprocess.Popen[str]) -> tuple[psutil.Process, psutil.Process]:
    """Before the block and within it."""
    assert driver.stdout
    before, within = (psutil.Process(int(driver.stdout.readline())) for _ in range(2))
    assert driver.stdout.readline() == "seen\n"
    return before, within


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["pass"], indirect=True)
def test_what_a_block_started_goes_with_it(driver: subprocess.Popen[str]) -> None:
    before, within = started(driver)
    assert driver.stdout
    assert driver.stdout.readline() == "on\n"
    assert left({before, within}, timeout_s=0) == {before}
    before.kill()


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["sys.stdin.read()"], indirect=True)
def test_all_goes_with_the_driver(driver: subprocess.Popen[str]) -> None:
    family = set(started(driver))
    driver.kill()
    assert left(family, timeout_s=4 * GRACE_S) == set()
