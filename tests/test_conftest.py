"""What every test may rely on, however the tests were started."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


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


def test_in_several_processes_a_file_stays_in_one() -> None:
    """Its fixtures would be made in each of them."""
    here = Path(__file__).parent
    files = [here / name for name in ("test_digest.py", "test_errors.py", "test_net.py", "test_lifetime.py")]
    several = ["--numprocesses", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-vv"]
    words = [sys.executable, "-m", "pytest", *several, *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here.parent)
    assert done.returncode == 0, done.stdout
    where = defaultdict(set)
    for process, file in re.findall(r"^\[(gw\d)\] .*PASSED tests/(\w+\.py)::", done.stdout, re.M):
        where[file].add(process)
    assert where.keys() == {file.name for file in files}, done.stdout
    assert all(len(processes) == 1 for processes in where.values()), where
    assert set().union(*where.values()) == {"gw0", "gw1"}


def _ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
