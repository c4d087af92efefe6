"""Who is left when a driver has ended, or its block."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from slime_cluster.ray.reaper import GRACE_S, LOOK_S, end_unguarded, wait_until_gone
from slime_testing.patience import Patience
from tests.waiting import until

DRIVER = """
import os, subprocess, sys, tempfile
from pathlib import Path
from slime_cluster.ray.reaper import LOOK_S, reaped
from slime_testing.patience import Patience, family
from slime.engines.scratch import scratch_prefix
mark = sys.argv[1]
start = lambda: print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
start()
with reaped(mark):
    start()
    for scratch in (tempfile.mkdtemp(prefix=scratch_prefix(owner)) for owner in (mark, "not" + mark)):
        (Path("/dev/shm") / (Path(scratch).name + "-mq")).touch()
    Patience(2 * LOOK_S + 2, lambda: family(os.getpid())).wait_for(lambda: False)  # the reaper starts, and looks
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
    assert wait_until_gone({zombie}, timeout_s=1000) == set()
    child.wait()


@pytest.fixture
def mark() -> Iterator[str]:
    """Of this test alone; what bears it goes at the end."""
    mark = secrets.token_hex(4)
    yield mark
    for path in litter(mark):
        with suppress(FileNotFoundError):  # a reaper that was not waited for removes them, too
            path.rmdir() if path.is_dir() else path.unlink()


def litter(mark: str) -> list[Path]:
    """Folders and shared memory whose names hold the mark: of the driver's run, and of another that looks alike."""
    return [path for place in (tempfile.gettempdir(), "/dev/shm") for path in Path(place).glob(f"*{mark}*")]


@pytest.fixture
def driver(request: pytest.FixtureRequest, mark: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", DRIVER.format(inside=request.param), mark]
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
def test_what_a_block_started_goes_with_it(driver: subprocess.Popen[str], mark: str) -> None:
    before, within = started(driver)
    assert len(litter(mark)) == 4
    assert driver.stdout
    assert driver.stdout.readline() == "on\n"
    assert len(litter(f"not{mark}")) == len(litter(mark)) == 2
    assert wait_until_gone({before, within}, timeout_s=0) == {before}
    before.kill()


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["sys.stdin.read()"], indirect=True)
def test_all_goes_with_the_driver(driver: subprocess.Popen[str], mark: str) -> None:
    family = {*started(driver), *psutil.Process(driver.pid).children()}  # with the reaper, which goes last
    driver.kill()
    assert wait_until_gone(family, timeout_s=20 * GRACE_S) == set()
    assert len(litter(f"not{mark}")) == len(litter(mark)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["sys.stdin.read()"], indirect=True)
def test_a_reaper_that_is_killed_has_a_successor(driver: subprocess.Popen[str], mark: str) -> None:
    before, within = started(driver)
    first = reaper_of(driver.pid)
    assert first
    first.kill()
    until(lambda: reaper_of(driver.pid) not in (None, first))
    second = reaper_of(driver.pid)
    assert second
    driver.kill()
    assert wait_until_gone({within, second}, timeout_s=20 * GRACE_S) == set()
    assert len(litter(f"not{mark}")) == len(litter(mark)) == 2
    before.kill()  # which the second had no time to see


def reaper_of(driver: int) -> psutil.Process | None:
    """None: there is none, or it has ended."""
    children = [child for child in psutil.Process(driver).children() if child.status() != psutil.STATUS_ZOMBIE]
    return next((child for child in children if "slime_cluster.ray.reaper" in child.cmdline()), None)


ORPHAN = "import subprocess as s, sys; print(s.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "driver", [f"subprocess.run([sys.executable, '-c', {ORPHAN!r}]); sys.stdin.read()"], indirect=True
)
def test_an_orphan_goes_with_the_driver_that_nobody_ever_saw_with_its_parent(driver: subprocess.Popen[str]) -> None:
    """As Ray's agents are, in the seconds in which a cluster starts."""
    started(driver)
    assert driver.stdout
    orphan = psutil.Process(int(driver.stdout.readline()))
    family = {orphan, *psutil.Process(driver.pid).children()}  # with the reaper, which removes folders and goes last
    driver.kill()
    assert wait_until_gone(family, timeout_s=20 * GRACE_S) == set()


LEAVING = """
import subprocess, sys
from slime_cluster.ray.reaper import Stay, reaped
mark, folder, seconds = sys.argv[1:]
with reaped(mark) as reaper:
    kept, other = (subprocess.Popen(["sleep", "1000"], start_new_session=True).pid for _ in range(2))
    reaper.stay(Stay(float(seconds), folder + "/door", [kept], folder + "/record"))
    {inside}
    print(kept, other, flush=True)
    sys.stdin.read()
"""
TAKING = """
import subprocess, sys
from slime_cluster.ray.reaper import END, call
called = call(sys.argv[1])
own = subprocess.Popen(["sleep", "1000"]).pid
print(own, flush=True)
sys.stdin.read()
called.sendall(END)
called.recv(1)
"""


@pytest.fixture
def leave(tmp_path: Path, mark: str) -> Iterator[Callable[..., list[psutil.Process]]]:
    """Kills a driver that wants a process to stay; returns that, one that is not to stay, and the reaper."""
    started = []

    def leave(seconds: float, inside: str = "pass") -> list[psutil.Process]:
        (tmp_path / "record").touch()
        command = [sys.executable, "-c", LEAVING.format(inside=inside), mark, str(tmp_path), str(seconds)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout
            kept, other = (psutil.Process(int(pid)) for pid in driver.stdout.readline().split())
            started.extend([kept, other, *psutil.Process(driver.pid).children()])
            driver.kill()
        return [kept, other, *(process for process in started if process not in (kept, other))]

    yield leave
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


Leave = Callable[..., list[psutil.Process]]


@pytest.mark.slow
def test_what_stays_is_taken_over_and_ends_with_the_second_driver(leave: Leave, tmp_path: Path) -> None:
    kept, other, reaper = leave(1000)
    command = [sys.executable, "-c", TAKING, str(tmp_path / "door")]
    assert Patience(20, list).wait_for((tmp_path / "door").exists)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout
        own = psutil.Process(int(second.stdout.readline()))
        assert wait_until_gone({kept, other, reaper, own}, timeout_s=0) == {kept, reaper, own}
        time.sleep(2 * LOOK_S)
        assert kept.is_running()
        second.communicate()
    assert wait_until_gone({kept, reaper, own}, timeout_s=20 * GRACE_S) == set()
    assert not (tmp_path / "record").exists()


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["reaper.stay(None)", "reaper.note('slime: Ray is gone')"])
def test_nothing_stays_of_a_driver_that_takes_it_back_or_has_told_its_end(leave: Leave, inside: str) -> None:
    assert wait_until_gone({*leave(1000, inside)}, timeout_s=20 * GRACE_S) == set()


@pytest.mark.slow
def test_nobody_comes_in_time(leave: Leave, tmp_path: Path) -> None:
    kept, _, reaper = leave(2)
    assert Patience(20, list).wait_for((tmp_path / "door").exists)
    assert kept.is_running()
    assert wait_until_gone({kept, reaper}, timeout_s=20 * GRACE_S) == set()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["reaper", "kept"])
def test_a_word_to_the_reaper_and_the_end_of_what_stays_end_all(leave: Leave, tmp_path: Path, victim: str) -> None:
    kept, _, reaper = leave(1000)
    assert Patience(20, list).wait_for((tmp_path / "door").exists)
    {"reaper": reaper, "kept": kept}[victim].terminate()
    assert wait_until_gone({kept, reaper}, timeout_s=20 * GRACE_S) == set()


@pytest.mark.slow
def test_what_nobody_guards_any_more_is_ended(leave: Leave, tmp_path: Path, mark: str) -> None:
    kept, _, reaper = leave(1000)
    assert Patience(20, list).wait_for((tmp_path / "door").exists)
    end_unguarded(mark)
    assert kept.is_running(), "its reaper lives"
    reaper.kill()
    reaper.wait()
    end_unguarded(mark)
    assert wait_until_gone({kept}, timeout_s=0) == set()
