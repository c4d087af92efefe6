"""What a reward starts, takes and prints, in real worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from slime.reward import guard
from slime.types import Verdict, VerdictKind
from tests.reward.asking import rewards, score

pytestmark = pytest.mark.usefixtures("installed")


def alive(pid: int) -> bool:
    return guard.state(pid) not in ("", guard.ZOMBIE)


def test_what_a_sample_leaves_behind_is_dead_when_its_verdict_comes(tmp_path: Path) -> None:
    log, pids = tmp_path / "reward.log", tmp_path / "pids"
    with rewards(log) as service:
        worker = score(service, "process_id")
        assert score(service, "leave_behind_and_tell", str(pids)) == Verdict.of(2.0)
        left = [int(pid) for pid in pids.read_text().split()]
        assert len(left) == 4
        assert not [pid for pid in left if alive(pid)]
        assert score(service, "process_id") == worker
    assert "killed 4 processes that a sample left behind" in log.read_text()


def test_the_dead_are_buried() -> None:
    with rewards() as service:
        for _ in range(3):
            score(service, "leave_behind", 3)
        assert score(service, "zombies") == Verdict.of(0.0)
        watcher = psutil.Process(int(score(service, "process_id").value or 0)).parent()
        assert watcher is not None
        assert len(watcher.children()) == 1


def test_what_the_factory_started_may_stay() -> None:
    with rewards(options={"helper": True}) as service:
        score(service, "leave_behind", 1)
        assert score(service, "helper_lives") == Verdict.of(1.0)


def test_memory_is_limited_for_all_processes_of_a_reward_together() -> None:
    """Each of the children keeps to its own RLIMIT_AS."""
    with rewards() as service:
        verdict = score(service, "breed", [150, 150, 150])
        assert verdict == Verdict.error("the reward and what it started grew by more than reward.memory_mb=256 MiB")
        assert score(service, "value", 1.0).value == 1.0


def test_memory_that_processes_share_counts_once() -> None:
    """The children of a reward of 100 MB: resident in each of them, yet one copy."""
    with rewards() as service:
        score(service, "grow", 100)
        assert score(service, "breed_and_wait", 5) == Verdict.of(5.0)


def test_the_number_of_processes_is_limited() -> None:
    with rewards() as service:
        verdict = score(service, "multiply", 7)
        assert verdict == Verdict.error("the reward ran more than 100 processes at a time")
        assert score(service, "value", 1.0).value == 1.0


def test_the_log_takes_so_much_of_a_worker_and_says_what_was_cut(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    with rewards(log) as service:
        assert score(service, "write_much", 3).value == 3.0
        assert score(service, "chatter").kind is VerdictKind.VALUE
    text = log.read_text()
    assert len(text) < guard.MAX_LOG_BYTES_A_WORKER + 1000
    assert "[slime] cut here; kept: 1 MiB a worker, 64 MiB of all" in text
    assert f"[slime] {2 * 2**20 + 16} bytes that this worker printed were cut" in text


def test_a_full_log_takes_no_more_of_any_worker(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    with log.open("wb") as file:
        os.truncate(file.fileno(), guard.MAX_LOG_BYTES - 10)
    with rewards(log) as service:
        assert score(service, "write_much", 1).value == 1.0
    assert log.stat().st_size < guard.MAX_LOG_BYTES + 1000


def test_a_disk_without_room_for_the_log_costs_no_verdict() -> None:
    with rewards(Path("/dev/full")) as service:
        assert score(service, "write_much", 1).value == 1.0
        assert score(service, "value", 2.0).value == 2.0
