"""How a worker begins and ends: what is said of it, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime.config.schema import RewardConfig
from slime.errors import SlimeError
from slime.reward.service import RewardService
from slime.types import Verdict, VerdictKind
from tests.reward.asking import GONE_WITHIN_S, IMPATIENT_S, rewards, score, wait_until_gone

pytestmark = pytest.mark.usefixtures("installed")


@pytest.mark.parametrize("behaviour", ["sleep", "hang_holding_the_gil", "hang_deaf_to_signals"])
def test_a_hanging_reward_is_a_timeout_and_the_next_sample_is_served(impatient: RewardService, behaviour: str) -> None:
    began = time.monotonic()
    verdict = score(impatient, behaviour, 1000)
    assert verdict == Verdict.timeout(f"no verdict within reward.timeout_s={IMPATIENT_S} s")
    assert time.monotonic() - began < GONE_WITHIN_S
    assert score(impatient, "value", 1.0).value == 1.0


def test_a_timeout_kills_the_worker_with_its_children_and_daemons(impatient: RewardService, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    assert score(impatient, "hang_with_children", str(pid_file)).kind is VerdictKind.TIMEOUT
    pids = [int(pid) for pid in pid_file.read_text().split()]
    assert len(pids) == 3
    wait_until_gone(pids)


def test_a_crash_takes_what_the_reward_started_along(service: RewardService, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    assert "SIGSEGV" in score(service, "segfault_with_a_daemon", str(pid_file)).reason
    wait_until_gone([int(pid_file.read_text())])


def test_a_worker_that_dies_while_idle_costs_no_sample_and_is_noted(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    with rewards(log) as service:
        pid = int(score(service, "process_id").value or 0)
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
        assert score(service, "value", 1.0).value == 1.0
    assert "a worker was lost: the reward's process was killed by SIGKILL" in log.read_text()


def test_a_worker_whose_guard_is_killed_while_idle_costs_no_sample(service: RewardService) -> None:
    pid = int(score(service, "process_id").value or 0)
    guard = psutil.Process(pid).parent()
    assert guard is not None
    guard.kill()
    wait_until_gone([pid])
    assert score(service, "value", 1.0).value == 1.0


@pytest.mark.parametrize(
    ("behaviour", "argument", "cause"),
    [
        ("segfault", None, "was killed by SIGSEGV"),
        ("kill_itself", int(signal.SIGABRT), "was killed by SIGABRT"),
        ("kill_itself", int(signal.SIGKILL), "was killed by SIGKILL (the kernel sends it"),
        ("leave", 3, "exited with code 3"),
        ("leave", 0, "exited with code 0"),
        ("close_every_file", None, "exited with code 1"),
    ],
)
def test_a_death_is_an_error_that_names_its_cause(
    service: RewardService, behaviour: str, argument: int | None, cause: str
) -> None:
    verdict = score(service, behaviour, argument)
    assert verdict.kind is VerdictKind.ERROR
    assert f"the reward's process {cause}" in verdict.reason
    assert score(service, "value", 1.0).value == 1.0


def test_memory_beyond_the_limit_is_an_error_and_a_new_worker(service: RewardService) -> None:
    before = score(service, "process_id").value
    assert score(service, "grow", 100).value == 1.0
    verdict = score(service, "grow", 200)
    assert verdict.kind is VerdictKind.ERROR
    assert "reward.memory_mb=256" in verdict.reason
    assert score(service, "process_id").value != before
    assert score(service, "grow", 200).value == 1.0  # the hoard of the old worker is gone


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("misbehaving", {"greting": "x"}, "plugin reward-zoo 1.2: reward 'misbehaving' cannot be created: TypeError"),
        ("unimportable", {}, "plugin reward-zoo 1.2: reward 'unimportable' cannot be created: ModuleNotFoundError"),
        ("stillborn", {}, "reward 'stillborn': 3 workers, one after the other: the reward's process was killed by"),
        ("misbehavin", {}, "Did you mean 'misbehaving'?"),
    ],
)
def test_a_reward_that_cannot_be_created_stops_the_start(name: str, options: dict[str, Any], message: str) -> None:
    service = RewardService(RewardConfig(name=name, options=options, num_workers=2))
    with pytest.raises(SlimeError) as caught:
        service.start()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


DRIVER = """
import asyncio, signal, sys
sys.path[:] = {path!r}
from slime.config.schema import RewardConfig
from slime.reward.service import RewardService
from slime.types import Prompt, Sample

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
with RewardService(RewardConfig(name="misbehaving", timeout_s=60.0, num_workers=2)) as service:
    asyncio.run(service.score(Sample(Prompt("0/0", (), (), {pid_file!r}), 0, response="hang_with_children")))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_driver(tmp_path: Path, number: int) -> None:
    pid_file = tmp_path / "pids"
    code = DRIVER.format(path=sys.path, pid_file=str(pid_file))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as driver:
        while not pid_file.exists() or len(pid_file.read_text().split()) < 3:
            assert driver.poll() is None, "the driver ended too early"
            time.sleep(0.01)
        below = [process.pid for process in psutil.Process(driver.pid).children(recursive=True)]
        assert {int(pid) for pid in pid_file.read_text().split()} <= set(below)
        os.kill(driver.pid, number)
    wait_until_gone(below)
