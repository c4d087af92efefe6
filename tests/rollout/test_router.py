"""The router's process; its work is shown in test_loop_sglang.py."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from slime.errors import SlimeError
from slime.rollout.engine import reserved_port
from slime.rollout.router import RouterProcess, open_router

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens


def test_an_engine_out_of_reach_is_named(tmp_path):
    with (
        pytest.raises(SlimeError, match=rf"the router did not reach {NOBODY} within 3 s\. See .*router\.log"),
        open_router([NOBODY], tmp_path, 60, start_timeout_s=3),
    ):
        pass


def test_a_taken_port_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        router = RouterProcess([NOBODY], taken.getsockname()[1], tmp_path / "router.log", 60)
        with pytest.raises(SlimeError, match=r"the router ended with code 1: .*Address already in use"):
            router.wait_until_ready(30)


DRIVER = """
import sys, time
from pathlib import Path
from slime.rollout.router import RouterProcess
router = RouterProcess([sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3]), 60)
print(router._process.pid, flush=True)
time.sleep(60)
"""


def test_it_dies_with_the_one_that_started_it(tmp_path):
    with reserved_port("127.0.0.1") as port:
        command = [sys.executable, "-c", DRIVER, NOBODY, str(port), str(tmp_path / "router.log")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            try:
                group = int(driver.stdout.readline())
                wait_for(lambda: members(group) - {group})
            finally:
                driver.kill()
    wait_for(lambda: not members(group))


def wait_for(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def members(group):
    """Living processes of a process group."""
    return {process.pid for process in psutil.process_iter() if is_member(process, group)}


def is_member(process, group):
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):  # it ended while we looked
        return False
