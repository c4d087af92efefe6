"""A run over two hosts that a hostfile joins (`tests/namespaces.py` says what a host is here, and what ssh)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from slime_cluster.ray.reaper import wait_until_gone
from slime_testing.patience import run_within
from tests.namespaces import Hosts, several_hosts
from tests.running import GONE_S, Run, command_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

SLOW_MIB_S = 200e6 / 8 / 2**20
QUEUE = ("burst", "1mb", "latency", "100ms")
SETTINGS = {
    "cluster.num_nodes": 2,
    "cluster.num_trainers": 2,
    "cluster.hostfile": "hosts",
    "cluster.socket_interface": "eth0",
    "run.num_steps": 30,
    "observe.zero_variance_steps": 0,
    "sft.num_steps": 2,
    "sft.lr_warmup_steps": 1,
    "eval.path": "null",
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with several_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def run(hosts: Hosts, tmp_path: Path) -> Run:
    """Of the laptop's loop, a trainer rank on each host and the engine on the first one."""
    (tmp_path / "hosts").write_text("\n".join(hosts.addresses))
    environment = {"PATH": f"{hosts.path}:{os.environ['PATH']}"}
    return Run(tmp_path, settings=SETTINGS, environment=environment, through=hosts.through)


def preflight(run: Run, model: str = "glm4-tiny") -> subprocess.CompletedProcess[str]:
    words = ["preflight", f"+model={model}", "+cluster=local", *(f"{k}={v}" for k, v in run.settings.items())]
    return run_within(
        200,
        [*run.through, sys.executable, "-m", "slime", *words],
        cwd=run.folder,
        env={**os.environ, **run.environment},
        check=False,
    )


def network_rates(told: str) -> list[float]:
    """MiB a second of each host, from what the preflight prints."""
    units = {"KiB": 2**-10, "MiB": 1, "GiB": 2**10}
    found = re.findall(r"^  network +([\d.]+) (\w+)/s with another host, [\d.]+ \w+/s with all$", told, re.MULTILINE)
    rates = [float(rate) * units[unit] for rate, unit in found]
    assert len(rates) == 2, told
    return rates


def test_preflight_measures_what_the_cable_carries(hosts: Hosts, run: Run) -> None:
    """The kernel lets 200 Mbit a second out of the second host. The control is the test below, whose model has no
    experts."""
    hosts.second.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "200mbit", *QUEUE)
    try:
        slow = preflight(run, "glm4-moe-tiny")
    finally:
        hosts.second.run("tc", "qdisc", "delete", "dev", "eth0", "root")
    assert slow.returncode == 0, slow.stderr
    assert max(network_rates(slow.stdout)) < 1.1 * SLOW_MIB_S, slow.stdout  # a burst goes through at once
    experts = re.findall(r"^  experts +([\d.]+) MiB/s through Megatron-core's dispatcher", slow.stdout, re.MULTILINE)
    assert [0 < float(rate) < 2.2 * SLOW_MIB_S for rate in experts] == [True, True], slow.stdout  # half stay at home
    assert wait_until_gone(hosts.second.running, GONE_S) == set()


def test_preflight_looks_at_both_and_names_the_one_that_lacks_something(hosts: Hosts, run: Run) -> None:
    """Then the second host has a disk of its own where the run directory is."""
    ready = preflight(run)
    assert ready.returncode == 0, ready.stderr
    told = [line.split() for line in ready.stdout.splitlines() if line.strip() and line[0] != " "]
    assert told == [[address, "ready"] for address in hosts.addresses], ready.stdout
    assert min(network_rates(ready.stdout)) > SLOW_MIB_S, ready.stdout
    assert "\n  experts " not in ready.stdout
    assert wait_until_gone(hosts.second.running, GONE_S) == set()
    hosts.second.run("mount", "-t", "tmpfs", "tmpfs", str(run.folder / "runs"))
    try:
        refused = preflight(run)
    finally:
        hosts.second.run("umount", str(run.folder / "runs"))
    assert refused.returncode == 2
    told = f"slime: preflight: {hosts.addresses[1]}: it finds no directory at {run.folder}/runs/"
    assert refused.stderr.startswith(told), refused.stderr
    assert wait_until_gone(hosts.second.running, GONE_S) == set()


def kill_with_reaper(run: Run) -> None:
    """Kill the driver, but first its reaper: that one finds the second host's processes here, as on no real host."""
    for child in psutil.Process(run.process.pid).children():
        if "slime_cluster.ray.reaper" in command_of(child):
            child.kill()
    run.kill()


def end(run: Run) -> None:
    """What the reaper would have ended on the first host."""
    for process in run.family:
        if isinstance(process, psutil.Process):
            with suppress(psutil.NoSuchProcess):  # they end by themselves, too
                process.kill()
    assert run.strays() == []


def test_nothing_is_left_of_a_killed_driver_and_a_lost_host_is_named(hosts: Hosts, run: Run) -> None:
    """Killed after a step; the same command resumes, and loses the second host in the middle of the next ones.

    The last test here: there is no second host after it.
    """
    run.start()
    run.until(lambda: run.has_step("rl", 2))
    there = " ".join(map(command_of, hosts.second.running))
    assert "ray::TrainerActor" in there or "ray::EngineActor" in there, there
    kill_with_reaper(run)
    assert wait_until_gone(hosts.second.running, GONE_S) == set()
    end(run)
    last = run.rows("rl")[-1]["step"]
    run.start()
    run.until(lambda: run.has_step("rl", last + 2))
    run.remember()
    hosts.second.first.kill()
    assert run.finish() == 2, run.text()
    told = run.text().splitlines()[-1]
    assert told.startswith("slime: ")
    assert hosts.addresses[1] in told
    assert "while" in told
    assert run.strays() == []
