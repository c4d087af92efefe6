"""A run of which one trainer rank is slow."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest

from tests.running import NO_CHECKPOINTS, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STANDS_S, RUNS_S = 0.08, 0.02


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """In the block the process stands still for most of the time."""
    process, over = psutil.Process(pid), Event()

    def hold() -> None:
        with suppress(psutil.NoSuchProcess):  # the run ends
            while not over.is_set():
                process.send_signal(signal.SIGSTOP)
                time.sleep(STANDS_S)
                process.send_signal(signal.SIGCONT)
                time.sleep(RUNS_S)

    holding = Thread(target=hold)
    holding.start()
    try:
        yield
    finally:
        over.set()
        holding.join()


def test_a_rank_that_is_slow_in_every_step_is_named_with_its_host(tmp_path: Path) -> None:
    """Both ranks are of this host. The one that nobody slows waits for the other and is not named."""
    settings = {"algo": "sft", "eval.path": "null", **NO_CHECKPOINTS}
    shortened = {"sft.num_steps": 20, "sft.lr_warmup_steps": 1, "sft.batch_size": 256}
    run = Run(tmp_path, cluster="local2", settings=settings, shortened=shortened).start()
    run.until(lambda: run.has_step("sft", 3))
    pid = int((run.path / "logs/trainer-1.stack").read_text().split()[0])
    with slowed(pid):
        run.until(lambda: "slow in each of 5 steps" in run.text())
    ranks = json.loads((run.path / "logs/ranks.json").read_text())
    run.succeed()
    assert [(rank["name"], rank["host"]) for rank in ranks] == [
        (f"trainer-{number}", socket.gethostname()) for number in (0, 1)
    ]
    named = re.findall(r"^(trainer-\d) on host (\S+): slow in each of 5 steps: its own passes took", run.text(), re.M)
    assert ("trainer-1", socket.gethostname()) in named
    assert "trainer-0" not in [name for name, _ in named]
    warnings = (run.path / "logs/warnings.jsonl").read_text()
    assert "trainer-1 on host" in warnings
    rows = run.rows("sft")
    assert all(row["trainers/seconds_mean"] <= row["trainers/seconds_max"] < row["seconds/train"] for row in rows)
    assert sum(row["trainers/slowest"] == 1 for row in rows) >= 5
