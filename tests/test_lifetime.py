"""Processes end with the one that started them, at whatever moment that goes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

CHILD = """
import os, time
from slime.lifetime import end_with_parent
end_with_parent({parent})
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_parent_that_has_gone_already_ends_the_process_at_once() -> None:
    child = CHILD.format(parent=os.getppid())  # which is somebody else
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_process_ends_when_its_parent_is_killed() -> None:
    child = CHILD.format(parent="os.getppid()")
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        descriptor = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        assert select.select([descriptor], [], [], 30)[0], "a pidfd is readable when its process has ended"
        os.close(descriptor)
