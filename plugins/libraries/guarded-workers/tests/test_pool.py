"""What a pool promises, of real workers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from guarded_workers.pool import Pool
from guarded_workers.wire import FaultError, Setup, StartError

T = TypeVar("T")
HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers take over the path of who starts them."""
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])


def pool(log: Path | None = None, wanted: tuple[str, ...] = (), **options: Any) -> Pool:
    setup = Setup("sum", "sums", options, "here", "sums", "arithmetic:Arithmetic", 256)
    return Pool(setup, 1, 2, wanted, log)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Pool]:
    made = pool(tmp_path / "log")
    made.start()
    yield made
    made.close()


def ask(pool: Pool, what: str, value: Any, timeout_s: float = 200.0, **how: Any) -> Any:
    async def asked() -> Any:
        async with pool.worker() as worker:
            return await worker.ask((what, value), lambda answer: answer, timeout_s, **how)

    return asyncio.run(asked())


def test_a_worker_answers(started: Pool) -> None:
    assert ask(started, "double", 21) == 42


def test_a_worker_that_hangs_is_replaced(started: Pool) -> None:
    with pytest.raises(TimeoutError):
        ask(started, "sleep", 600, timeout_s=0.2)
    assert ask(started, "double", 2) == 4


def test_what_raises_is_told_with_its_line(started: Pool) -> None:
    with pytest.raises(FaultError, match=r"ValueError: sums knows no root \(arithmetic.py:\d+ in answer\)"):
        ask(started, "root", 2)


def test_memory_and_processes_are_bounded(started: Pool) -> None:
    with pytest.raises(FaultError, match=r"MemoryError: the sum grew by more than sums\.memory_mb=256 MiB"):
        ask(started, "grow", 2**30)
    with pytest.raises(FaultError, match="the sum ran more than 100 processes at a time"):
        ask(started, "fork", None)
    assert ask(started, "double", 3) == 6


def test_what_a_request_leaves_behind_is_gone_with_its_answer(started: Pool) -> None:
    child = ask(started, "leave", None)
    assert not Path(f"/proc/{child}").exists()


def test_a_worker_may_ask_back(started: Pool) -> None:
    async def serve(question: Any) -> Any:
        return question + 1

    assert ask(started, "ask", 1, serve=serve) == 2


def test_what_cannot_be_created_says_why_in_its_own_words() -> None:
    with pytest.raises(StartError, match=r"^options: refuses\. Let it not\.$"):
        pool(refuses=True).start()


@pytest.mark.parametrize("who", ["guard", "scorer"])
def test_a_worker_that_is_killed_as_it_starts_has_a_successor(who: str, tmp_path: Path) -> None:
    made = pool(tmp_path / "log", takes_s=2)
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(made.start)
        [guard] = _until(lambda: [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_guard(pid)])
        _until((tmp_path / "log").read_text)  # what holds the worker: before that it looks what may hold it
        [scorer] = _until(lambda: Path(f"/proc/{guard}/task/{guard}/children").read_text().split())
        os.kill(int(guard if who == "guard" else scorer), signal.SIGKILL)
        starting.result()
    assert ask(made, "double", 4) == 8
    made.close()
    assert "was killed by SIGKILL" in (tmp_path / "log").read_text()


def test_workers_that_are_killed_as_they_start_end_the_start_without_blame() -> None:
    with pytest.raises(
        StartError, match=r"^sum 'sums': 3 workers, one after the other: .* was killed by SIGKILL \("
    ) as error:
        pool(dies=True).start()
    assert "cannot be created" not in str(error.value)


def _until(found: Callable[[], T]) -> T:
    deadline = time.monotonic() + 60
    while not (seen := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return seen


def _is_guard(pid: str) -> bool:
    """Of this process: xdist may have another that does the same."""
    return _is_worker(pid) and Path(f"/proc/{pid}/stat").read_text().split()[3] == str(os.getpid())


def test_a_variable_that_is_wanted_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUMS_API_KEY", "secret")
    with pytest.raises(StartError, match=r"sums.environment: the variable SUMS_API_KY is not set.*'SUMS_API_KEY'\?$"):
        pool(wanted=("SUMS_API_KY",)).start()


def test_output_and_what_holds_the_workers_is_in_the_log(tmp_path: Path) -> None:
    made = pool(tmp_path / "log")
    made.start()
    made.close()
    assert "no more than 100 processes at a time" in (tmp_path / "log").read_text()
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_worker(pid)]


def _is_worker(pid: str) -> bool:
    try:
        return HERE in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
