"""Whole runs in which something is killed while it starts: it is named, and what may come back does."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.running import NO_CHECKPOINTS, NO_STOP, Run, command_of
from tests.test_run_engines_killed import SCHEDULER, outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVER, GUARD, GCS = "slime_sglang.engine.launcher", "guarded_workers.worker", "gcs_server"
STARTS_AGAIN = re.compile(
    r"^engine-0 \(pid (\d+), http://\S+\): (.*), as it started; engine-0 starts again \((\d) of 3\)$", re.M
)
TOLD_S = 10.0


def next_of(run: Run, word: str, seen: set[int]) -> psutil.Process:
    """The next process of the run whose command has the word, as soon as there is one."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        children = psutil.Process(run.process.pid).children(recursive=True)
        found[:] = [child for child in children if word in command_of(child) and child.pid not in seen]
        return bool(found)

    run.until(is_there)
    assert found, run.text()
    seen.add(found[0].pid)
    return found[0]


def test_an_engine_and_a_reward_worker_killed_as_they_start_come_back(finished: Run, tmp_path: Path) -> None:
    """The supervised stage, which needs no engine, goes on meanwhile; nothing that is learnt differs."""
    run = Run(tmp_path, settings=NO_CHECKPOINTS).start()
    seen: set[int] = set()
    next_of(run, GUARD, seen).kill()
    for word in (SERVER, SCHEDULER):
        run.until(lambda: "starting 1 trainer rank and 1 engine" in run.text())
        victim = next_of(run, word, seen)
        victim.kill()
    run.succeed()
    assert outcome(run) == outcome(finished)
    assert run.weights() == finished.weights()
    server, scheduler = STARTS_AGAIN.findall(run.text())
    assert (server[1], server[2]) == ("was killed by SIGKILL", "1")
    assert (scheduler[1], scheduler[2]) == (f"ended with exit code 1: process {victim.pid} was killed by SIGKILL", "2")
    assert int(server[0]) in seen
    assert run.has_step("sft", 1)
    first = run.text().index("sft 1/4") if "sft 1/4" in run.text() else run.text().index("sft ")
    assert first < run.text().index("engine-0 is up, "), "supervised steps did not wait for it"
    assert [row["engines/restarts"] for row in run.rows("rl") if "engines/restarts" in row] == [2.0]
    assert "its guard was killed by SIGKILL" in (run.path / "logs/reward.log").read_text()


def test_the_control_process_of_ray_that_is_killed_as_the_run_starts_is_named_soon(tmp_path: Path) -> None:
    """Whatever call of Ray's the run is in, which would wait a minute for it."""
    run = Run(tmp_path, settings={**NO_CHECKPOINTS, **NO_STOP}).start()
    run.until(lambda: "starting 1 trainer rank and 1 engine" in run.text())
    control = next_of(run, GCS, set())
    control.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    run.remember()
    assert run.finish() == 2
    assert time.monotonic() - killed < TOLD_S
    last = run.text().splitlines()[-1]
    assert re.match(rf"slime: Ray's gcs_server \S+ \S+: \(pid {control.pid}\) was killed by SIGKILL", last), last
    assert run.strays() == []
    assert run.litter() == []
