"""Time limits on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from slime_testing.patience import Patience, family, run_within, seconds_without_core

SPIN = "import os\nos.sched_setaffinity(0, {int(os.environ['CORE'])})\nprint(flush=True)\nwhile True: pass"
SLEEP = "import time\nprint(flush=True)\ntime.sleep(600)"


@contextmanager
def running(*programs: str) -> Iterator[list[int]]:
    """Their pids, once each has begun. What spins shares one core."""
    environment = {**os.environ, "CORE": str(min(os.sched_getaffinity(0)))}
    with ExitStack() as stack:
        started = []
        for program in programs:
            process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            started.append(process.pid)
        yield started


def test_time_without_a_core_does_not_count() -> None:
    """Four share a core, so each is without it for most of the time; half of it is asserted."""
    with running(*[SPIN] * 4) as pids:
        patience = Patience(0.5, lambda: pids[:1])
        time.sleep(1.0)
        assert not patience.is_over()
        assert seconds_without_core(pids[:1]) > 0.5


def test_a_process_that_waits_uses_its_limit_up() -> None:
    with running(SLEEP) as pids:
        patience = Patience(0.3, lambda: pids)
        assert not patience.is_over()
        time.sleep(0.3 + seconds_without_core(pids) + 0.2)
        assert patience.is_over()
        patience.renew()
        assert not patience.is_over()


def test_what_a_process_waited_before_the_limit_began_counts_once() -> None:
    """It may lengthen the limit to the double, and then no more: one that hangs now is found."""
    program = f"import time\n{SPIN.replace('while True', 'while time.process_time() < 0.5')}\ntime.sleep(600)"
    with running(*[program] * 4) as pids:
        while seconds_without_core(pids[:1]) < 1.0 or any(psutil.Process(pid).status() == "running" for pid in pids):
            time.sleep(0.05)
        patience = Patience(0.3, lambda: pids[:1])
        time.sleep(0.4)
        assert not patience.is_over(), "it may have been within the limit"
        start = time.monotonic()
        assert not patience.wait_for(lambda: False)
        assert time.monotonic() - start < 0.5


def test_processes_that_are_gone_count_as_nothing() -> None:
    with running(SLEEP) as pids:
        pass
    assert seconds_without_core(pids) == 0


def test_a_command_gets_its_time_although_its_child_has_no_core() -> None:
    """It takes two seconds of a core that four programs share: longer by the clock than the limit. What the parent
    waits for a core is not added to what the child waits: hence two seconds more."""
    child = (
        "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile time.process_time() < 2: pass"
    )
    parent = f"import subprocess, sys; print('began', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    with running(*[SPIN] * 3):
        start = time.monotonic()
        done = run_within(4.5, [sys.executable, "-c", parent])
    assert time.monotonic() - start > 4.5
    assert done.stdout == "began\n"


def test_a_command_that_waits_is_killed_at_its_limit() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_within(1.0, [sys.executable, "-c", SLEEP])
    assert not [child for child in psutil.Process().children() if SLEEP in child.cmdline()]


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
