"""What a reward starts, takes and prints, in real worker processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from guarded_workers import guard, processes
from slime.types import Verdict, VerdictKind
from tests.reward.asking import GONE_WITHIN_S, rewards, score

pytestmark = pytest.mark.usefixtures("installed")


def alive(pid: int) -> bool:
    return processes.state(pid) not in ("", processes.ZOMBIE)


def test_what_a_sample_leaves_behind_is_dead_when_its_verdict_comes(tmp_path: Path) -> None:
    log, pids = tmp_path / "reward.log", tmp_path / "pids"
    with rewards(log) as service:
        worker = score(service, "process_id")
        assert score(service, "leave_behind_and_tell", str(pids)) == Verdict.of(2.0)
        left = [int(pid) for pid in pids.read_text().split()]
        assert len(left) == 4
        assert not [pid for pid in left if alive(pid)]
        assert score(service, "process_id") == worker
    assert "killed 4 processes that a request left behind" in log.read_text()


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


def test_a_loop_of_forks_is_held_and_gone_with_the_verdict(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with rewards() as service:
        began = time.monotonic()
        verdict = score(service, "fork_loop", str(begun))
        assert verdict == Verdict.error("the reward ran more than 100 processes at a time")
        assert time.monotonic() - began < GONE_WITHIN_S
        assert begun.stat().st_size <= 2 * guard.MAX_PROCESSES  # some that were allowed were not seen yet
        assert score(service, "value", 1.0).value == 1.0


def test_a_daemon_that_runs_from_process_to_process_is_caught_before_the_verdict_comes(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    with rewards() as service:
        worker = score(service, "process_id")
        for _ in range(5):
            assert score(service, "run_away", str(steps)).value == 1.0
            size = steps.stat().st_size if steps.exists() else 0
            time.sleep(0.1)
            assert (steps.stat().st_size if steps.exists() else 0) == size
        assert score(service, "process_id") == worker


def test_many_processes_one_after_another_are_not_too_many() -> None:
    with rewards() as service:
        assert score(service, "zombies").value == 0.0
        for _ in range(4):
            assert score(service, "leave_behind", 20).value == 20.0


def test_threads_are_not_counted_as_processes() -> None:
    with rewards(memory_mb=4096) as service:
        assert score(service, "start_threads", guard.MAX_PROCESSES + 20).value == guard.MAX_PROCESSES + 20


def test_a_factory_may_keep_processes_and_its_samples_have_their_own_number() -> None:
    with rewards(name="breeder", options={"count": 120}, memory_mb=4096) as service:
        assert score(service, "breed_and_wait", 90) == Verdict.of(90.0)
        assert score(service, "multiply", 7) == Verdict.error("the reward ran more than 100 processes at a time")


def test_files_in_shared_memory_and_of_tempfile_are_counted_and_removed(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    with rewards(log) as service:
        if "/dev/shm" in log.read_text().partition("does not permit")[2]:
            pytest.skip("this machine does not permit namespaces")
        within = score(service, "write_files", 100)
        assert within.kind is VerdictKind.INVALID, within
        assert not [name for name in within.reason.split() if Path(name).exists()]
        verdict = score(service, "write_files", 300)
        assert verdict == Verdict.error("the reward and what it started grew by more than reward.memory_mb=256 MiB")
        assert score(service, "write_files", 100).kind is VerdictKind.INVALID


def test_shared_memory_that_is_mapped_counts_once() -> None:
    with rewards() as service:
        assert score(service, "map_shared_memory", 180).value == 180.0


def test_the_log_takes_so_much_of_a_worker_and_says_what_was_cut(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    with rewards(log) as service:
        assert score(service, "write_much", 3).value == 3.0
        assert score(service, "chatter").kind is VerdictKind.VALUE
    text = log.read_text()
    assert len(text) < guard.MAX_LOG_BYTES_A_WORKER + 1000
    assert "[guard] cut here; kept: 1 MiB a worker, 64 MiB of all" in text
    assert f"[guard] {2 * 2**20 + 16} bytes that this worker printed were cut" in text


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
