"""What every test may rely on, however the tests were started."""

from __future__ import annotations

import signal
import subprocess
import sys


def test_a_child_takes_an_interrupt() -> None:
    sleeping = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(sleeping, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
    assert child.returncode == -signal.SIGINT


def test_in_the_background_of_a_script_it_does_too() -> None:
    """Shells have such jobs ignore the signal, and children inherit that."""
    again = [sys.executable, "-m", "pytest", "-q", f"{__file__}::{test_a_child_takes_an_interrupt.__name__}"]
    done = subprocess.run(again, capture_output=True, text=True, preexec_fn=_ignore)
    assert done.returncode == 0, done.stdout


def _ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
