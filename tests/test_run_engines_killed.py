"""Whole runs whose engines are killed in mid-rollout, and come back."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.running import NO_CHECKPOINTS, NO_STOP, Run, command_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEEPER, SCHEDULER = "ray::EngineActor", "sglang::scheduler"
BACK = re.compile(r"^(engine-\d) takes requests again, \d+ s after its end$", re.M)


def members(run: Run, words: str) -> list[psutil.Process]:
    """Processes of the run whose command begins so, the oldest first."""
    found = []
    for child in psutil.Process(run.process.pid).children(recursive=True):
        if command_of(child).startswith(words):
            found.append(child)
    return sorted(found, key=psutil.Process.create_time)


def servers(run: Run) -> list[psutil.Process]:
    """In the order in which they were started."""
    found = [child for keeper in members(run, KEEPER) for child in keeper.children()]
    return sorted(found, key=psutil.Process.create_time)


@contextmanager
def standing(run: Run) -> Iterator[None]:
    """The driver stands still in the block, so that no step passes before all that is killed there is gone."""
    run.process.send_signal(signal.SIGSTOP)
    yield
    run.process.send_signal(signal.SIGCONT)


def outcome(run: Run) -> list[dict[str, float]]:
    """What the steps generated and learnt; no times."""
    kept = re.compile(r"step|(rollout|eval|train|filter)/")
    return [{name: value for name, value in row.items() if kept.match(name)} for row in run.rows("rl")]


def require_same(run: Run, unhurt: Run) -> None:
    """What was generated, evaluated and learnt, and the weights, to the bit."""
    assert outcome(run) == outcome(unhurt)
    assert run.losses() == unhurt.losses()
    assert run.weights() == unhurt.weights()


def test_engines_that_are_killed_under_load_come_back_and_nothing_is_lost(finished: Run, tmp_path: Path) -> None:
    """Two engines at once, so that everything waits; then a keeper, while the other engine goes on, to the end."""
    run = Run(tmp_path, settings={**NO_CHECKPOINTS, "rollout.engines.default.devices": 2}).start()
    run.until(lambda: run.has_step("rl", 1))
    with standing(run):
        scheduler = members(run, SCHEDULER)[0]
        next(server for server in servers(run) if scheduler not in server.children(recursive=True)).kill()
        scheduler.kill()
    run.until(lambda: len(BACK.findall(run.text())) == 2)
    with standing(run):
        kill_keepers(run, 1)
    run.until(lambda: "starts again (2 of 3)" in run.text())
    run.remember()
    run.succeed()
    assert run.strays() == []
    assert run.litter() == []
    require_same(run, finished)
    said = run.text()
    assert len(re.findall(r"; engine-\d starts again \(\d of 3\)", said)) == 3
    told = sum(row.get("engines/restarts", 0) for row in run.rows("rl"))
    assert told in (2, 3), "the last one may begin after the last step has generated, whose row counts it"
    assert re.search(
        r"engine-\d \(pid \d+, http://\S+\): was killed by SIGKILL; engine-\d starts again \(1 of 3\)", said
    )
    assert len(re.findall(r"was killed by SIGKILL, it seems.*; engine-\d starts again \(2 of 3\)", said)) == 1


def kill_keepers(run: Run, number: int) -> None:
    """And with each its engine, which looks whether it lives."""
    for keeper in members(run, KEEPER)[:number]:
        kept = keeper.children(recursive=True)
        keeper.kill()
        psutil.wait_procs(kept)


def generates(run: Run, log: str = "engine-0") -> bool:
    """Whether an engine has begun requests since its last publish."""
    told = (run.path / f"logs/{log}.log").read_text()
    return told.rfind("Prefill batch") > told.rfind("of weight version")


def has_made_room(run: Run) -> bool:
    """Whether the engine has flushed its cache three times since its last request: twice as it released the memory of
    keys and values, and once as it released that of weights."""
    told = (run.path / "logs/engine-0.log").read_text()
    return generates(run) and told[told.rfind("Prefill batch") :].count("Cache flushed") >= 3


def test_an_engine_that_shares_devices_comes_back_whoever_has_these(finished: Run, tmp_path: Path) -> None:
    """Killed as it generates, and with its keeper as it has made room for trainers."""
    run = Run(tmp_path, settings={**NO_CHECKPOINTS, "cluster.placement": "colocated"}).start()
    run.until(lambda: run.has_step("rl", 1) and generates(run))
    with standing(run):
        servers(run)[0].kill()
    run.until(lambda: len(BACK.findall(run.text())) == 1)
    run.until(lambda: has_made_room(run))
    with standing(run):
        kill_keepers(run, 1)
    run.until(lambda: len(BACK.findall(run.text())) == 2)
    run.remember()
    run.succeed()
    assert run.strays() == []
    assert run.litter() == []
    require_same(run, finished)
    assert sum(row.get("engines/restarts", 0) for row in run.rows("rl")) == 2


def test_one_of_two_engines_that_share_devices_is_back_in_the_next_step(finished: Run, tmp_path: Path) -> None:
    """The other one takes its requests: none of those that it has begun is given up for a publish."""
    settings = {**NO_CHECKPOINTS, "cluster.placement": "colocated", "rollout.engines.default.devices": 2}
    run = Run(tmp_path, settings=settings).start()
    run.until(lambda: run.has_step("rl", 1) and generates(run))
    with standing(run):
        servers(run)[0].kill()
    run.succeed()
    assert len(BACK.findall(run.text())) == 1
    require_same(run, finished)


@pytest.mark.usefixtures("_mooncake")
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_of_a_pair_comes_back(finished: Run, tmp_path: Path, role: str) -> None:
    """Killed with requests in both; few at once, for prefill would be done with all of them by then."""
    settings = {"eval.interval": 1000, "rollout.max_requests_per_engine": 2, **NO_CHECKPOINTS}
    run = Run(tmp_path, cluster="local-pd", settings=settings).start()
    run.until(lambda: run.has_step("rl", 1) and generates(run))
    with standing(run):
        next(server for server in servers(run) if f'"{role}"' in command_of(server)).kill()
    run.until(lambda: bool(BACK.search(run.text())))
    run.remember()
    run.succeed()
    assert run.strays() == []
    assert run.litter() == []
    assert run.weights() == finished.weights()
    assert run.losses() == finished.losses()


@pytest.mark.parametrize(("transport", "num_engines"), [("broadcast", 2), ("disk", 1)])
def test_engines_get_their_weights_again_however_they_travel(
    finished: Run, tmp_path: Path, transport: str, num_engines: int
) -> None:
    """A broadcast among others than before, both of whose keepers die at once; a version of a delta and what it builds
    on. They die at the next publish, or in it."""
    folder = {"weights.path": tmp_path / "weights"} if transport == "disk" else {}
    engines = {"rollout.engines.default.devices": num_engines}
    settings = {**NO_CHECKPOINTS, **folder, **engines, "weights.transport": transport}
    run = Run(tmp_path, settings=settings).start()
    run.until(lambda: run.has_step("rl", 2))
    with standing(run):
        if transport == "broadcast":
            kill_keepers(run, num_engines)
        else:
            servers(run)[0].kill()
    run.until(lambda: len(BACK.findall(run.text())) == num_engines)
    run.succeed()
    require_same(run, finished)


def publishes(run: Run) -> bool:
    """Whether it does now, by its own words, which are as old as the poll that reads them."""
    now = run.path / "logs/now.json"
    return now.exists() and '"phase": "publish"' in now.read_text()


def test_samples_begun_ahead_wait_for_the_only_engine_which_dies_in_a_publish(tmp_path: Path) -> None:
    """They are inside the engine then, and are asked for again once it is back, longer than a death takes to be
    noticed."""
    settings = {**NO_CHECKPOINTS, **NO_STOP, "rollout.max_staleness": 1, "run.num_steps": 12, "weights.bucket_mb": 1}
    run = Run(tmp_path, settings=settings).start()
    run.until(lambda: run.has_step("rl", 2) and publishes(run))
    with standing(run):
        servers(run)[0].kill()
    run.until(lambda: len(BACK.findall(run.text())) == 1)
    run.succeed()
    assert [row["step"] for row in run.rows("rl") if "train/loss" in row] == list(range(1, 13))


def test_an_engine_over_two_hosts_comes_back_whole_and_is_named_when_it_dies_again(tmp_path: Path) -> None:
    """Both are this host, a process and a rank each: one is killed, and both are started. The second time the run ends,
    and goes on where it was once it is started again."""
    settings = {"eval.interval": 1000, "train.checkpoint.interval": 1, **NO_STOP, "rollout.restarts": 1}
    run = Run(tmp_path, cluster="local-hosts", settings={**settings, "run.num_steps": 500}).start()
    run.until(lambda: run.has_step("rl", 1))
    second_of(run).kill()
    run.until(lambda: bool(BACK.search(run.text())))
    again = run.rows("rl")[-1]["step"]
    run.until(lambda: run.has_step("rl", again + 2))
    with standing(run):
        run.remember()
        second = second_of(run)
        second.kill()
    assert run.finish() == 2
    name = f"engine-0-node1 (node_rank 1, pid {second.pid} on {socket.gethostname()})"
    assert run.text().splitlines()[-1].startswith(f"slime: {name}: was killed by SIGKILL")
    assert "; engine-0 starts again (1 of 1)" in run.text()
    assert run.strays() == []
    assert run.litter() == []
    last = run.rows("rl")[-1]["step"]
    run.settings = {**settings, "run.num_steps": last + 1}
    run.start().succeed()
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == list(range(1, last + 2))
    assert all(row["train/logprob_diff_max"] < 1e-4 for row in steps), "both ranks hold the published weights"


def second_of(run: Run) -> psutil.Process:
    """The server of the second host."""
    (second,) = (server for server in servers(run) if "node_rank=1" in server.cmdline())
    return second
