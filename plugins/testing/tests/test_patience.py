"""Time limits on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest

from slime_testing.patience import Patience, family, run_within, seconds_without_core

SPIN = """
import os, sys
os.sched_setaffinity(0, {int(os.environ['CORE'])})
print(flush=True)
sys.stdin.readline()
while True: pass
"""
SLEEP = "import time\nprint(flush=True)\ntime.sleep(600)"


@contextmanager
def running(*programs: str) -> Iterator[list[int]]:
    """Their pids, once all have begun. What spins shares one core, and begins to spin when all are there."""
    environment, pipes = {**os.environ, "CORE": str(min(os.sched_getaffinity(0)))}, {"stdin": -1, "stdout": -1}
    with ExitStack() as stack:
        started = []
        for program in programs:
            process = subprocess.Popen([sys.executable, "-c", program], **pipes, env=environment)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        for process in started:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        yield [process.pid for process in started]


def test_time_without_a_core_does_not_count() -> None:
    """Four share a core, so each is without it for most of the time; half of it is asserted."""
    with running(*[SPIN] * 4) as pids:
        patience = Patience(0.5, lambda: pids[:1])
        time.sleep(1.0)
        assert not patience.is_over()
        assert seconds_without_core(pids[:1]) > 0.5


def test_a_process_that_waits_uses_its_limit_up() -> None:
    with running(SLEEP) as pids:
        patience = Patience(1.0, lambda: pids)
        assert not patience.is_over()
        assert not patience.wait_for(lambda: False), "and so it comes to an end"
        assert patience.is_over()
        patience.renew()
        assert not patience.is_over()


def test_what_a_process_waited_before_the_limit_began_counts_once() -> None:
    """It may lengthen the limit to the double, and then no more: one that hangs now is found."""
    program = SPIN.replace("sys", "sys, time", 1).replace("True", "time.process_time() < 0.8") + "time.sleep(600)"
    with running(*[program] * 4) as pids:
        while seconds_without_core(pids[:1]) < 1.0 or any(psutil.Process(pid).status() == "running" for pid in pids):
            time.sleep(0.05)
        began, looks = time.monotonic(), list[float]()
        patience = Patience(0.3, lambda: pids[:1])
        time.sleep(0.4)
        assert not patience.is_over(), "it may have been within the limit"
        passed_s = time.monotonic() - began
        assert not patience.wait_for(lambda: bool(looks.append(time.monotonic())))
        *before_its_end, _ = [began, *looks]
        assert before_its_end[-1] - began <= 0.3 + passed_s


def test_processes_that_are_gone_count_as_nothing() -> None:
    with running(SLEEP) as pids:
        pass
    assert seconds_without_core(pids) == 0


def test_a_command_gets_its_time_although_its_child_has_no_core() -> None:
    """The child is nice to three others on its core, and so gets a thirtieth of it: longer by the clock than the limit.
    What the parent waits for a core is not added to what the child waits: hence a limit far above the third of a second
    that the child needs."""
    spin = "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nos.nice(10)"
    child = f"{spin}\nbegan = time.process_time()\nwhile time.process_time() - began < 0.3: pass"
    parent = f"import subprocess, sys; print('began', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    with running(*[SPIN] * 3):
        start = time.monotonic()
        done = run_within(6.0, [sys.executable, "-c", parent])
    assert time.monotonic() - start > 6.0
    assert done.stdout == "began\n"


def test_a_command_that_waits_is_killed_at_its_limit() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_within(1.0, [sys.executable, "-c", SLEEP])
    assert not [child for child in psutil.Process().children() if SLEEP in words(child)]


def words(process: psutil.Process) -> list[str]:
    """Of its command line; none of one that has ended since."""
    with suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return []


def test_a_command_that_fails_shows_what_it_printed() -> None:
    command = [sys.executable, "-c", "import sys; print('out'); sys.exit('err')"]
    with pytest.raises(AssertionError, match=r"exit code 1\nout\n\nerr"):
        run_within(60, command)
    assert run_within(60, command, check=False).stderr == "err\n"


def test_a_family_is_a_process_and_its_descendants() -> None:
    nest = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with subprocess.Popen([sys.executable, "-c", f"{nest}; print(p.pid, flush=True); p.wait()"], stdout=-1) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert family(process.pid) == [process.pid, child]
        psutil.Process(child).kill()
    assert family(process.pid) == []
