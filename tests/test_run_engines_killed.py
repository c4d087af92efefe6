"""Whole runs whose engines are killed in mid-rollout, and come back."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.running import NO_CHECKPOINTS, NO_STOP, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = {**NO_CHECKPOINTS, **NO_STOP, "run.num_steps": 12, "eval.interval": 6}
KEEPER, SCHEDULER = "ray::EngineActor", "sglang::scheduler"
BACK = re.compile(r"^(engine-\d) takes requests again, \d+ s after its end$", re.M)


def members(run: Run, words: str) -> list[psutil.Process]:
    """Processes of the run whose command begins so, the oldest first."""
    found = []
    for child in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if " ".join(child.cmdline()).startswith(words):
                found.append(child)
    return sorted(found, key=psutil.Process.create_time)


def servers(run: Run) -> list[psutil.Process]:
    """In the order in which they were started."""
    found = [child for keeper in members(run, KEEPER) for child in keeper.children()]
    return sorted(found, key=psutil.Process.create_time)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("undisturbed"), settings=STEPS).start().succeed()


def outcome(run: Run) -> list[dict[str, float]]:
    """What the steps generated and learnt; no times."""
    kept = re.compile(r"step|(rollout|eval|train|filter)/")
    return [{name: value for name, value in row.items() if kept.match(name)} for row in run.rows("rl")]


def test_engines_that_are_killed_under_load_come_back_and_nothing_is_lost(undisturbed: Run, tmp_path: Path) -> None:
    """Two engines: first both at once, so that everything waits; then their keepers and a single one."""
    run = Run(tmp_path, settings={**STEPS, "rollout.engines.default.devices": 2}).start()
    run.until(lambda: run.has_step("rl", 1))
    scheduler = members(run, SCHEDULER)[0]
    next(server for server in servers(run) if scheduler not in server.children(recursive=True)).kill()
    scheduler.kill()
    run.until(lambda: len(BACK.findall(run.text())) == 2)
    run.until(lambda: run.has_step("rl", 4))
    for keeper in members(run, KEEPER):
        keeper.kill()
    run.until(lambda: len(BACK.findall(run.text())) == 4)
    run.remember()
    run.succeed()
    assert run.strays() == []
    assert run.litter() == []
    assert outcome(run) == outcome(undisturbed)
    assert run.weights() == undisturbed.weights()
    assert sum(row.get("engines/restarts", 0) for row in run.rows("rl")) == 4
    said = run.text()
    assert re.search(
        r"engine-\d \(pid \d+, http://\S+\): was killed by SIGKILL; engine-\d starts again \(1 of 3\)", said
    )
    assert len(re.findall(r"was killed by SIGKILL, it seems.*; engine-\d starts again \(2 of 3\)", said)) == 2


@pytest.mark.parametrize(("transport", "num_engines"), [("broadcast", 2), ("disk", 1)])
def test_engines_get_their_weights_again_however_they_travel(
    undisturbed: Run, tmp_path: Path, transport: str, num_engines: int
) -> None:
    """A broadcast among others than before; a version of a delta and what it builds on. They die at the next publish,
    or in it."""
    folder = {"weights.path": tmp_path / "weights"} if transport == "disk" else {}
    engines = {"rollout.engines.default.devices": num_engines}
    run = Run(tmp_path, settings={**STEPS, **folder, **engines, "weights.transport": transport}).start()
    run.until(lambda: run.has_step("rl", 2))
    for server in servers(run):
        server.kill()
    run.until(lambda: len(BACK.findall(run.text())) == num_engines)
    run.succeed()
    assert outcome(run) == outcome(undisturbed)
    assert run.weights() == undisturbed.weights()


def test_an_engine_over_two_hosts_comes_back_whole(tmp_path: Path) -> None:
    """Both are this host: one of its two processes is killed, and both are started."""
    run = Run(tmp_path, cluster="local-hosts", settings=STEPS).start()
    run.until(lambda: run.has_step("rl", 2))
    (second,) = (server for server in servers(run) if "node_rank=1" in server.cmdline())
    second.kill()
    run.until(lambda: bool(BACK.search(run.text())))
    run.remember()
    run.succeed()
    assert run.litter() == []
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert all(row["train/logprob_diff_max"] < 1e-4 for row in steps), "both ranks hold the published weights"
    assert "(node_rank 1, " in run.text()


def test_the_run_ends_when_an_engine_has_died_too_often(tmp_path: Path) -> None:
    run = Run(tmp_path, settings={**STEPS, "run.num_steps": 500, "rollout.restarts": 1}).start()
    run.until(lambda: run.has_step("rl", 1))
    servers(run)[0].kill()
    run.until(lambda: bool(BACK.search(run.text())))
    servers(run)[0].kill()
    assert run.finish() == 2
    last = run.text().splitlines()[-1]
    assert re.match(
        r"slime: engine-0 \(pid \d+, http://[^ ]*:\d+\): was killed by SIGKILL\. Read \S*/engine-0\.log", last
    )
