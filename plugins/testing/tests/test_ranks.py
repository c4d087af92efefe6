import os
import subprocess
import sys
import time

import pytest

from guarded_workers import processes
from slime_testing.ranks import Rank, run_ranks
from tests.waiting import until


def where(rank: Rank, word: str) -> tuple[Rank, str, str, str]:
    return rank, os.environ["RANK"], word, rank.again().master_addr


def fail_on_one(rank: Rank) -> None:
    if rank.rank == 1:
        raise ValueError("the reason")
    time.sleep(600)  # longer than it would be waited for


def wait_for_ever(rank: Rank) -> None:
    time.sleep(600)


def leave_a_helper(rank: Rank) -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid


def test_results_come_by_rank() -> None:
    (first, env0, word, next0), (second, env1, _, next1) = run_ranks(where, 2, "hello")
    assert (first.rank, second.rank, env0, env1, word) == (0, 1, "0", "1", "hello")
    assert first.world_size == second.world_size == 2
    assert first.master_addr == second.master_addr != next0 == next1


def test_an_exception_ends_all_ranks_at_once_and_shows_its_traceback() -> None:
    with pytest.raises(AssertionError, match=r"rank 1 ended with 1[\s\S]*ValueError: the reason"):
        run_ranks(fail_on_one, 2)


def test_a_hang_shows_where_every_rank_stands() -> None:
    with pytest.raises(AssertionError, match=r"rank \[0\] still ran at the time limit[\s\S]*in wait_for_ever"):
        run_ranks(wait_for_ever, 1, timeout_s=2)


def test_helper_processes_go_with_their_rank() -> None:
    (pid,) = run_ranks(leave_a_helper, 1)
    until(lambda: processes.state(pid) in ("", processes.ZOMBIE))
