"""What a worker can reach beside itself, where the machine permits to hold it and where it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from guarded_workers import guard
from slime.types import Verdict, VerdictKind
from tests.reward.asking import rewards, score

pytestmark = pytest.mark.usefixtures("installed")

HOLDS = "the reward has: no more than 100 processes at a time"
SIGHT = "no sight of the memory and environment of other processes"
ALONE = """
import asyncio, os, sys
from pathlib import Path
sys.path[:] = {path!r}
from tests.reward.asking import rewards, score

with rewards(Path({log!r})) as service:
    print(score(service, "value", 1.0).value, score(service, "read_text", f"/proc/{{os.getpid()}}/environ").kind)
    print(score(service, "fork_loop", {begun!r}).reason)
"""


def test_a_worker_sees_neither_the_driver_nor_what_is_hidden(tmp_path: Path) -> None:
    token, log = tmp_path / "token", tmp_path / "reward.log"
    token.write_text("secret")
    with rewards(log, hidden=[token, tmp_path / "none"]) as service:
        if "does not permit" in log.read_text():
            pytest.skip("this machine does not permit namespaces")
        assert score(service, "read_text", str(token)) == Verdict.invalid("")
        for secret in ("environ", "mem", "maps", "fd/0"):
            verdict = score(service, "read_text", f"/proc/{os.getpid()}/{secret}")
            assert "PermissionError" in verdict.reason, secret
    assert token.read_text() == "secret"
    assert log.read_text().count(HOLDS) == 1


def test_what_is_in_force_is_said_once_and_not_of_every_worker(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    with rewards(log, num_workers=2) as service:
        assert score(service, "segfault").kind is VerdictKind.ERROR
        assert score(service, "value", 1.0).value == 1.0
    assert log.read_text().count("of its own, counted in reward.memory_mb") == 1


def test_without_namespaces_forks_are_held_all_the_same_and_the_log_says_what_is_not(tmp_path: Path) -> None:
    """As in a container: root, who may make no user namespace."""
    unshare = shutil.which("unshare")
    forbid = f'echo 0 > /proc/sys/user/max_user_namespaces && exec {sys.executable} -c "$CODE"'
    log, begun = tmp_path / "reward.log", tmp_path / "begun"
    code = ALONE.format(path=sys.path, log=str(log), begun=str(begun))
    if not unshare or subprocess.run([unshare, "-Ur", "true"], capture_output=True).returncode:
        pytest.skip("this machine does not permit namespaces")
    said = subprocess.run(
        [unshare, "-Ur", "sh", "-c", forbid], capture_output=True, text=True, env=os.environ | {"CODE": code}
    )
    assert said.stdout.splitlines() == ["1.0 error", "the reward ran more than 100 processes at a time"], said.stderr
    assert begun.stat().st_size <= 2 * guard.MAX_PROCESSES
    line = next(line for line in log.read_text().splitlines() if HOLDS in line)
    has, _, lacks = line.partition(". this machine does not permit: ")
    assert SIGHT in has
    assert lacks == "/dev/shm and TMPDIR of its own, counted in reward.memory_mb (namespaces)"
