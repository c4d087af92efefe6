"""Whole runs whose trainer ranks are killed or stopped, and come back."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slime.observe.metrics import read_rows
from tests.running import NO_CHECKPOINTS, NO_STOP, Run
from tests.test_run_engines_killed import generates, has_made_room, members, require_same, servers, standing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RANK = "ray::TrainerActor"
BACK = re.compile(r"trainers are back, \d+ s after their end: the run (.*)$", re.M)
COPIES = {"train.checkpoint.interval": 0, "train.checkpoint.in_memory_every": 1}
HELD = """
import json, time
from pathlib import Path

from slime_rewards.math.rewards import ArithmeticReward

def has_passed(step):
    rows = map(json.loads, Path("{path}/runs/it/metrics.jsonl").read_text().splitlines())
    return any(row["stage"] == "rl" and row["step"] >= step for row in rows)

def score(sample):
    while has_passed(3) and not Path("{path}/go").exists():
        time.sleep(0.05)
    return ArithmeticReward().score(sample)
"""
"""The reward of the recipe, given in the last step when the test says so."""


def require_from_copy(run: Run, step: int) -> None:
    """Of a run with `COPIES` that was hurt once when that step was done: no more than one step ran again."""
    [after] = BACK.findall(run.text())
    assert after in (f"continues after rl {step}", f"continues after rl {step - 1}")
    place = after.removeprefix("continues after ")
    assert re.search(rf"starts? again after {place} \(1 of 2\)$", run.text(), re.M)


def lose(run: Run, rank: int = 0, how: signal.Signals = signal.SIGKILL) -> None:
    """Signal a rank, and wait until trainers are back."""
    num_back = len(BACK.findall(run.text()))
    with standing(run):
        members(run, RANK)[rank].send_signal(how)
    run.until(lambda: len(BACK.findall(run.text())) > num_back)


def test_a_rank_that_is_killed_or_stopped_comes_back_and_nothing_is_lost(finished: Run, tmp_path: Path) -> None:
    """Killed behind the first step of the stage, and stopped behind the second. The newest checkpoint may still be on
    its way to the disk then."""
    run = Run(tmp_path, settings={"cluster.hang_timeout_s": 20}, silence_s=120).start()
    run.until(lambda: (run.path / "checkpoints/step-000004").exists() and run.has_step("rl", 1))
    engines = servers(run)
    lose(run)
    run.until(lambda: run.has_step("rl", 2))
    lose(run, how=signal.SIGSTOP)
    run.remember()
    assert servers(run) == engines, "they stay"
    run.succeed()
    assert run.strays() == []
    assert run.litter() == []
    require_same(run, finished)
    killed, stopped = re.findall(r"^trainer-0\S* .*; 1 trainer rank starts again .*$", run.text(), re.M)
    first = re.search(r"pid \d+ on .*\): was killed by SIGKILL.*starts again after (\w+ \d) \(1 of 2\)$", killed)
    second = re.search(r"no answer within 20 s while .*starts again after (\w+ \d) \(2 of 2\)$", stopped)
    assert first
    assert second
    assert BACK.findall(run.text()) == [f"continues after {each[1]}" for each in (first, second)]
    steps = [row["step"] for row in run.rows("rl")]
    assert steps == sorted(set(steps))
    abandoned = read_rows(run.path / "logs/metrics-abandoned.jsonl")
    assert abandoned
    assert sum(row.get("trainers/restarts", 0) for row in [*run.rows("rl"), *abandoned]) == 2


def test_ranks_that_share_devices_with_engines_come_back_whoever_has_these(finished: Run, tmp_path: Path) -> None:
    """Killed while engines generate, whom the ranks have made room for, and stopped when they have made room again."""
    settings = {"cluster.placement": "colocated", "cluster.hang_timeout_s": 20}
    run = Run(tmp_path, settings=settings, silence_s=120).start()
    run.until(lambda: run.has_step("rl", 1) and generates(run))
    engines = servers(run)
    lose(run)
    run.until(lambda: run.has_step("rl", 2))
    run.until(lambda: has_made_room(run))
    lose(run, how=signal.SIGSTOP)
    assert servers(run) == engines, "they stay"
    run.succeed()
    require_same(run, finished)
    assert len(BACK.findall(run.text())) == 2
    assert all({"seconds/onload", "seconds/offload"} <= row.keys() for row in run.rows("rl") if "train/loss" in row)


def test_a_rank_and_the_engine_beside_it_come_back(finished: Run, tmp_path: Path) -> None:
    """Both die at once, as they do for memory; the engine starts before the rank, which takes the device last."""
    run = Run(tmp_path, settings={"cluster.placement": "colocated"}, silence_s=120).start()
    run.until(lambda: run.has_step("rl", 1) and generates(run))
    with standing(run):
        servers(run)[0].kill()
        members(run, RANK)[0].kill()
    run.until(lambda: bool(BACK.search(run.text())))
    run.succeed()
    require_same(run, finished)
    assert "; engine-0 starts again (1 of 3)" in run.text()


@pytest.mark.parametrize(
    "settings",
    [pytest.param({"algo": "ppo"}, id="critic"), pytest.param({"algo": "ppo", **NO_CHECKPOINTS}, id="beginning")],
)
def test_two_ranks_with_a_critic_come_back(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    """Rank 1 dies; where no checkpoint is there all begins again, whatever engines, which were up, hold."""
    runs = [Run(tmp_path / name, cluster="local2", settings=settings) for name in ("unhurt", "hurt")]
    for run in runs:
        run.folder.mkdir()
    unhurt, hurt = runs
    unhurt.start().succeed()
    hurt.start().until(lambda: hurt.has_step("rl", 3))
    lose(hurt, rank=1)
    hurt.succeed()
    require_same(hurt, unhurt)
    after = "begins again" if "train.checkpoint.interval" in settings else "continues after rl 2"
    assert BACK.findall(hurt.text()) == [after]


def test_samples_that_were_begun_ahead_are_begun_again(tmp_path: Path) -> None:
    settings = {"rollout.max_staleness": 1, "rollout.publish": "keep", "run.num_steps": 6}
    run = Run(tmp_path, settings=settings).start()
    run.until(lambda: run.has_step("rl", 3))
    lose(run)
    run.succeed()
    rows = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert all(row["rollout/staleness_max"] <= 1 for row in rows)


def test_the_run_ends_once_the_budget_is_spent(tmp_path: Path) -> None:
    """In supervised steps, while engines may still be starting."""
    settings = {**NO_CHECKPOINTS, **NO_STOP, "sft.num_steps": 10000, "train.restarts": 1}
    run = Run(tmp_path, settings=settings).start()
    run.until(lambda: run.has_step("sft", 1))
    lose(run)
    with standing(run):
        run.remember()
        trainer = members(run, RANK)[0]
        trainer.kill()
    assert run.finish() == 2
    last = run.text().splitlines()[-1]
    assert re.match(rf"slime: trainer-0 \(pid {trainer.pid} on .*\): was killed by SIGKILL", last), last
    assert "1 trainer rank starts again from the beginning (1 of 1)" in run.text()
    assert run.strays() == []
    assert run.litter() == []


def test_a_rank_returns_to_the_copy_in_memory(finished: Run, tmp_path: Path) -> None:
    """The checkpoint of the supervised steps is two steps old when the rank is killed, in the last step."""
    (tmp_path / "held.py").write_text(HELD.format(path=tmp_path))
    settings = {**COPIES, "reward.path": "held.py:score", "reward.timeout_s": 300}
    run = Run(tmp_path, settings=settings, silence_s=120).start()
    run.until(lambda: run.has_step("rl", 1))
    folders = set(Path("/dev/shm").glob("slime-engine-*-copies-*"))
    with standing(run):
        run.remember()
        [keeper] = members(run, "ray::CopyKeeper")
        keeper.kill()
    run.until(lambda: run.has_step("rl", 3))
    assert run.process.poll() is None, run.text()
    folders |= set(Path("/dev/shm").glob("slime-engine-*-copies-*"))
    lose(run)
    (tmp_path / "go").touch()
    run.remember()
    run.succeed()
    assert run.strays() == []
    assert len(folders) >= 2
    assert [folder for folder in folders if folder.exists()] == []
    require_same(run, finished)
    require_from_copy(run, 3)
