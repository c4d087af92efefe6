"""Runs over several hosts of which one is lost: a spare one takes its place, or the same one that comes back
(`tests/namespaces.py` says what a host is here, and what ssh)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.namespaces import Hosts, several_hosts
from tests.running import NO_STOP, Run, command_of
from tests.test_run_engines_killed import require_same
from tests.test_run_trainers_killed import BACK, COPIES, require_from_copy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = {"cluster.num_nodes": 2, "cluster.num_trainers": 2, "cluster.hostfile": "hosts"}
SETTINGS |= {"cluster.socket_interface": "eth0"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with several_hosts(tmp_path_factory.mktemp("hosts"), 3) as hosts:
        yield hosts


def started(hosts: Hosts, folder: Path, settings: Mapping[str, Any], used: int = 3) -> Run:
    """A run of the laptop's loop with a trainer rank on each of two hosts, and the first engine on the first."""
    folder.mkdir(exist_ok=True)
    (folder / "hosts").write_text("\n".join(hosts.addresses[:used]))
    environment = {"PATH": f"{hosts.path}:{os.environ['PATH']}"}
    settings = {**SETTINGS, **settings}
    return Run(folder, settings=settings, environment=environment, through=hosts.through, silence_s=120).start()


def lose(run: Run, hosts: Hosts, address: str) -> None:
    """The host ends at once, with all that runs on it."""
    assert hosts.others[address].running, "it is one of the run's"
    hosts.others[address].first.kill()


SPARE = {"cluster.spares": 1, "rollout.engines.default.devices": 2}
"""The second host, which is lost, has a trainer rank and an engine."""


@pytest.fixture(scope="module")
def unhurt(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return started(hosts, tmp_path_factory.mktemp("unhurt"), SPARE).succeed()


def test_ranks_of_a_lost_host_return_to_their_copy_on_the_other(hosts: Hosts, unhurt: Run, tmp_path: Path) -> None:
    run = started(hosts, tmp_path, {**SPARE, **COPIES})
    run.until(lambda: run.has_step("rl", 3))
    lose(run, hosts, hosts.addresses[1])
    run.until(lambda: bool(BACK.findall(run.text())))
    run.remember()
    run.succeed()
    hosts.bring_up(hosts.addresses[1])
    require_same(run, unhurt)
    assert run.strays() == []
    require_from_copy(run, 3)


def test_a_spare_host_takes_the_place_of_a_lost_one_and_nothing_is_lost(
    hosts: Hosts, unhurt: Run, tmp_path: Path
) -> None:
    run = started(hosts, tmp_path / "hurt", SPARE)
    run.until(lambda: run.has_step("rl", 3))
    second, spare = hosts.addresses[1:]
    idle = hosts.others[spare].running
    assert idle
    lose(run, hosts, second)
    run.until(lambda: bool(BACK.findall(run.text())))
    there = " ".join(map(command_of, hosts.others[spare].running - idle))
    assert "ray::TrainerActor" in there, there
    assert "ray::EngineActor" in there, there
    run.remember()
    run.succeed()
    hosts.bring_up(second)
    require_same(run, unhurt)
    assert run.strays() == []
    told = re.search(
        r"^trainer-1 \(pid \d+ on .*\): host (\S+): the host was lost while .*\(1 of 2\)$", run.text(), re.M
    )
    assert told, run.text()
    assert told[1] == second
    assert BACK.findall(run.text()) == ["continues after rl 2"]


def test_a_host_is_waited_for_and_the_run_ends_where_none_comes(hosts: Hosts, tmp_path: Path) -> None:
    run = started(hosts, tmp_path, {"cluster.wait_for_host_s": 60, "run.num_steps": 100, **NO_STOP}, used=2)
    second = hosts.addresses[1]
    run.until(lambda: run.has_step("rl", 1))
    lose(run, hosts, second)
    run.until(lambda: "waiting for a host" in run.text())
    hosts.bring_up(second)
    run.until(lambda: bool(BACK.findall(run.text())))
    run.remember()
    lose(run, hosts, second)
    assert run.finish() == 2
    hosts.bring_up(second)
    last = run.text().splitlines()[-1]
    assert last.startswith(f"slime: host {second}: the host was lost while "), last
    assert "no host came in its place within 60 s (cluster.wait_for_host_s)" in last
    assert run.strays() == []


def test_without_another_host_the_run_goes_on_with_fewer_ranks(hosts: Hosts, finished: Run, tmp_path: Path) -> None:
    """Two data-parallel ranks, and one once the second host is lost; `finished` has had one from the start. Another
    order of sums is all that differs."""
    run = started(hosts, tmp_path, {"cluster.min_hosts": 1, **COPIES}, used=2)
    run.until(lambda: run.has_step("rl", 2))
    second = hosts.addresses[1]
    lose(run, hosts, second)
    run.until(lambda: bool(BACK.findall(run.text())))
    run.remember()
    run.succeed()
    hosts.bring_up(second)
    assert run.strays() == []
    require_from_copy(run, 2)
    told = f"host {second}: no host came in its place within 0 s (cluster.wait_for_host_s); the run goes on with "
    assert f"{told}1 trainer rank (dp 1) on 1 host in the place of 2 trainer ranks (dp 2) on 2: " in run.text()
    alike = [(stage, step, pytest.approx(loss, rel=1e-4, abs=1e-5)) for stage, step, loss in finished.losses()]
    assert run.losses() == alike
    rewards = [
        [row["rollout/num_tokens"] for row in each.rows("rl") if "train/loss" in row] for each in (run, finished)
    ]
    assert rewards[0] == rewards[1]
