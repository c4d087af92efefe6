"""Processes end with the one that started them, at whatever moment that goes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from slime_testing.patience import run_within

CHILD = """
import os, time
from slime.lifetime import end_with_parent
end_with_parent({parent})
print(os.getpid(), flush=True)
time.sleep(60)
"""


SERVER = """
import os, subprocess, sys, time
from functools import partial
from pathlib import Path
from slime.lifetime import end_group_with_parent
parent, scratch = int(sys.argv[1]) or os.getppid(), Path(sys.argv[2])
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
end_group_with_parent(parent, partial(scratch.rmdir))
print(os.getpid(), worker.pid, flush=True)
time.sleep(60)
"""
STARTS_IT_IN_A_THREAD = """
import subprocess, sys, threading, time
start = lambda: subprocess.Popen([sys.executable, "-c", sys.argv[1], "0", sys.argv[2]], start_new_session=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(60)
"""


def test_parent_that_has_gone_already_ends_the_process_at_once() -> None:
    child = CHILD.format(parent=os.getppid())  # which is somebody else
    done = run_within(30, [sys.executable, "-c", child], check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_process_ends_when_its_parent_is_killed() -> None:
    child = CHILD.format(parent="os.getppid()")
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        descriptor = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        assert select.select([descriptor], [], [], 30)[0], "a pidfd is readable when its process has ended"
        os.close(descriptor)


def test_a_group_ends_with_its_parent_and_not_with_the_thread_that_started_it(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-c", STARTS_IT_IN_A_THREAD, SERVER, str(scratch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        descriptors = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        assert not select.select(descriptors, [], [], 1)[0], "its thread has ended, the parent has not"
        assert scratch.exists()
        process.kill()
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 30)[0], "a pidfd is readable when its process has ended"
            os.close(descriptor)
    assert not scratch.exists()


def test_a_group_whose_parent_ended_before_it_could_watch_ends_too(tmp_path: Path) -> None:
    """It has another parent by then, which may live for ever."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(["true"]) as parent:
        pass
    command = [sys.executable, "-c", SERVER, str(parent.pid), str(scratch)]
    assert run_within(30, command, start_new_session=True, check=False).returncode == -signal.SIGKILL
    assert not scratch.exists()
