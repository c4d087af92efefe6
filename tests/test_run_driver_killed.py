"""Whole runs whose driver is killed, and whose processes the same command takes over, or that end with the grace."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from slime.engines.scratch import scratch_prefix
from slime_cluster.ray.left import RECORD
from slime_cluster.ray.reaper import wait_until_gone
from tests.running import GONE_S, NO_STOP, Run
from tests.test_run_engines_killed import KEEPER, SCHEDULER, generates, members, require_same
from tests.test_run_trainers_killed import RANK, lose, require_from_copy
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GRACE = {"cluster.driver_grace_s": 120}
STAYS = "the same command takes it over"


def kill(run: Run) -> list[psutil.Process]:
    """Kill the driver alone, and wait until what it ran is there to be taken over; returns the actors and engines that
    it had started itself."""
    kept = [each for words in (RANK, KEEPER, SCHEDULER) for each in members(run, words)]
    num_told = run.text().count(STAYS)
    run.kill()
    until(lambda: run.text().count(STAYS) > num_told, told=run.text)
    return kept


def have_ended(processes: Sequence[psutil.Process]) -> list[bool]:
    return [not process.is_running() for process in processes]


def test_the_same_command_takes_over_and_nothing_is_lost(finished: Run, tmp_path: Path) -> None:
    """Killed in a step, as engines generate, and between two others; the second driver has taken over itself."""
    run = Run(tmp_path, settings=GRACE).start()
    run.until(lambda: run.has_step("rl", 1) and generates(run))
    kept = kill(run)
    for step in (2, 3):
        run.start().until(partial(run.has_step, "rl", step))
        assert not any(have_ended(kept)), run.text()
        if step == 2:
            kill(run)
    run.remember()
    run.family += kept
    run.succeed()
    assert run.text().count("taking over 1 trainer rank and 1 engine") == 2
    assert run.strays() == []
    assert run.litter() == []
    assert not (run.path / RECORD).exists()
    require_same(run, finished)


def test_two_ranks_with_a_critic_return_to_their_copy_and_are_taken_over(tmp_path: Path) -> None:
    """Rank 1 dies first: those that the other driver takes over are not the first ones, and what they had in memory
    goes with who had asked for it."""
    settings = {"algo": "ppo", "run.num_steps": 6, **GRACE, "train.checkpoint.in_memory_every": 1}
    runs = [Run(tmp_path / name, cluster="local2", settings=settings) for name in ("unhurt", "hurt")]
    for run in runs:
        run.folder.mkdir()
    unhurt, hurt = runs
    unhurt.start().succeed()
    assert not (unhurt.path / RECORD).exists()
    hurt.start().until(lambda: hurt.has_step("rl", 3))
    mark = json.loads((hurt.path / RECORD).read_text())["mark"]
    copies = {*Path("/dev/shm").glob(f"{scratch_prefix(mark)}copies-*")}
    lose(hurt, rank=1)
    require_from_copy(hurt, 3)
    kept = kill(hurt)
    hurt.start().until(lambda: bool(re.search(r"ready: continues after rl [24],", hurt.text())))
    assert not any(have_ended(kept))
    hurt.succeed()
    require_same(hurt, unhurt)
    assert len(copies) == 1
    assert not any(folder.exists() for folder in copies)


def test_engines_that_share_devices_are_taken_over_as_they_generate(finished: Run, tmp_path: Path) -> None:
    """The ranks are in host memory then."""
    run = Run(tmp_path, settings={"cluster.placement": "colocated", **GRACE}).start()
    run.until(lambda: run.has_step("rl", 1) and generates(run))
    kept = kill(run)
    run.start().until(lambda: run.has_step("rl", 3))
    assert not any(have_ended(kept))
    run.succeed()
    require_same(run, finished)


def test_what_has_died_meanwhile_starts_again(finished: Run, tmp_path: Path) -> None:
    run = Run(tmp_path, settings=GRACE).start()
    run.until(lambda: run.has_step("rl", 2))
    rank, _, scheduler = kill(run)
    rank.kill()
    scheduler.kill()
    psutil.wait_procs([rank, scheduler])
    run.start()
    run.succeed()
    assert "trainer-0: ended, or not at rest within 30 s; trainers start again" in run.text()
    assert "engine-0: ended meanwhile; starts again" in run.text()
    require_same(run, finished)


def test_another_config_ends_what_was_left_and_the_grace_ends_all(tmp_path: Path) -> None:
    """A second driver is refused while the first one lives."""
    settings = {**NO_STOP, "run.num_steps": 10000}
    run = Run(tmp_path / "first", settings={**settings, **GRACE})
    run.folder.mkdir()
    run.start().until(lambda: run.has_step("rl", 1))
    second = Run(tmp_path / "second", settings=run.settings).start_beside(run)
    assert second.finish() == 2
    assert "another run is using this directory" in second.text()
    kept = kill(run)
    run.settings = {**settings, "cluster.driver_grace_s": 3}
    run.start().until(lambda: "loading weights" in run.text().partition(STAYS)[2])
    said = "what a driver of this run has left is ended, and all starts again: cluster.driver_grace_s: 120.0 -> 3.0"
    assert said in run.text()
    assert all(have_ended(kept))
    run.until(lambda: "ready: " in run.text().partition(said)[2])
    ready = time.time()  # the first steps are the driver's before
    run.until(lambda: any(row["time"] > ready for row in run.rows("rl")))
    again = kill(run)
    assert not any(have_ended(again)), "they live, but not for long"
    assert wait_until_gone({*again}, 3 + GONE_S) == set()
    assert run.strays() == []
    assert run.litter() == []
    assert not (run.path / RECORD).exists()
