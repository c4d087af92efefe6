"""Who is killed, what is said of it, and what it costs: of processes with a run's words, which a script restarts."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from slime_tools.drill.kills import Killed, choose, during, named, position, strike
from slime_tools.drill.processes import DRIVER, GUARD, WORKER, Traces, members

RUN = """
import json, subprocess, sys, time
WORDS = ["guarded_workers.worker"]
WORKER = [sys.executable, "-c", "import time; time.sleep(60)", *WORDS]
GUARD = [sys.executable, "-c", f"import subprocess; subprocess.run({WORKER!r})", *WORDS]

def begin():
    return subprocess.Popen(GUARD)

guard, step = begin(), 0
trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "ray::TrainerActor"])
while True:
    time.sleep(0.1)
    if guard.poll() is not None:
        print("[guard] a worker was lost: its guard was killed by SIGKILL", flush=True)
        guard = begin()
    if trainer.poll() is not None:
        sys.exit(f"slime: trainer-0 (pid {trainer.pid}): was killed by SIGKILL")
    step += 1
    with open("run/metrics.jsonl", "a") as file:
        file.write(json.dumps({"stage": "rl", "step": step, "time": 0.0}) + "\\n")
"""


@dataclass
class Scripted:
    process: subprocess.Popen[bytes]
    output: Path
    path: Path


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Scripted]:
    (tmp_path / "run/logs").mkdir(parents=True)
    output = tmp_path / "output.txt"
    with output.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", RUN], cwd=tmp_path, stdout=out, stderr=out)
    family: list[psutil.Process] = []
    try:
        scripted = Scripted(process, output, tmp_path / "run")
        deadline = time.monotonic() + 30
        while len(family) < 4 or position(scripted) == (0, 0):
            assert time.monotonic() < deadline, output.read_text()
            family = [each for _, each in members(psutil.Process(process.pid))]
            time.sleep(0.05)
        yield scripted
    finally:
        family += psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for each in [process, *family]:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        process.wait()


def strike_at(run: Scripted, role: str) -> Killed:
    found = choose(run, [role], random.Random(0))
    assert found
    return strike(run, *found, usual_s=0.05, patience_s=30)


def test_a_guard_and_its_worker_have_their_roles(run: Scripted) -> None:
    found = dict(members(psutil.Process(run.process.pid)))
    assert [*found] == [DRIVER, GUARD, "trainer", WORKER]
    assert found[WORKER].parent() == found[GUARD]
    assert choose(run, ["engine's server"], random.Random(0)) is None


def test_a_loss_that_the_run_survives_is_named_and_costs_seconds(run: Scripted) -> None:
    traces = Traces()
    traces.look(psutil.Process(run.process.pid))
    killed = strike_at(run, GUARD)
    assert (killed.role, killed.code) == (GUARD, None)
    assert killed.named.endswith("its guard was killed by SIGKILL")
    assert 0 <= killed.seconds < 30
    assert not psutil.pid_exists(killed.pid) or psutil.Process(killed.pid).status() == psutil.STATUS_ZOMBIE
    assert len(traces.strays(0)) >= 2, "the driver and the trainer live"
    assert traces.litter() == []


def test_a_loss_that_ends_the_run_has_its_exit_code(run: Scripted) -> None:
    killed = strike_at(run, "trainer")
    assert killed.code == 1
    assert f"trainer-0 (pid {killed.pid}): was killed by SIGKILL" in killed.named
    assert choose(run, ["trainer"], random.Random(0)) is None


def test_what_a_run_does_is_told_by_its_own_words(run: Scripted) -> None:
    assert during(run) == "start"
    (run.path / "logs/now.json").write_text(json.dumps({"stage": "rl", "phase": "publish", "starting": ""}))
    assert during(run) == "rl publish"
    (run.path / "logs/now.json").write_text(json.dumps({"stage": "", "phase": "", "starting": "waiting"}))
    assert during(run) == "start"


def test_a_lost_host_is_named_by_its_own_line(tmp_path: Path) -> None:
    """Which an engine's line is not, nor one of a host that was lost before."""
    run = Scripted(None, tmp_path / "output.txt", tmp_path)  # type: ignore[arg-type]
    before = "host 10.77.0.2: the host was lost while train_rl: its session of ssh ended with exit code -9; a spare"
    run.output.write_text(f"{before}\n")
    said = {run.output: run.output.stat().st_size}
    engine = "engine-1 (pid 7, http://10.77.0.3:40001): was killed by SIGKILL; engine-1 starts again (1 of 3)"
    run.output.write_text(f"{before}\n{engine}\n")
    assert named(run, "session of a host", 99, said) == ""
    line = "slime: host 10.77.0.3: the host was lost while publishing: its session of ssh ended with exit code -9. See"
    run.output.write_text(f"{before}\n{engine}\n{line}\n")
    assert named(run, "session of a host", 99, said) == line
