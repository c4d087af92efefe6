"""What is said of processes that have ended."""

import subprocess
import sys

import pytest

from slime.rollout.lifeline import ChildEnd, how_ended

ORPHAN = """
import sys, time
from slime.rollout.lifeline import die_with_parent
die_with_parent(int(sys.argv[1]), sys.argv[2])
time.sleep(600)
"""


@pytest.mark.timeout(60)
def test_a_server_whose_parent_ended_before_it_could_watch_ends_too(tmp_path):
    """It has another parent by then, which may live for ever."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(["true"]) as parent:
        pass
    command = [sys.executable, "-c", ORPHAN, str(parent.pid), str(scratch)]
    assert subprocess.run(command, start_new_session=True, check=False).returncode == -9
    assert not scratch.exists()


def test_the_first_end_that_a_log_tells_of_is_found_again():
    """A scheduler dies, then the process above it gives up; a traceback of the one above that comes last."""
    scheduler, controller = ChildEnd(100.25, 31, how_ended(-9)), ChildEnd(100.5, 30, how_ended(1))
    log = f"fired up\n{controller}\n{scheduler}\nTraceback (most recent call last):\n  process 7 was killed by mistake"
    assert ChildEnd.first(log) == scheduler
    assert ChildEnd.first(f"{controller}\n") == controller
    assert ChildEnd.first("fired up") is None
