"""This host among those of a hostfile, and what is said of one that is not reached."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from slime.config.schema import ClusterConfig
from slime.errors import SlimeError
from slime.topology import launcher
from slime.topology.launcher import Order, ThisHost
from slime_cluster.ssh.session import Session, sessions
from slime_cluster.ssh.this_host import find_this_host
from slime_testing.patience import Patience, family

CLUSTER = ClusterConfig(name="it", hostfile="hosts")
ELSEWHERE = "192.0.2.1"
"""An address that no host has (RFC 5737)."""


def own_address() -> str:
    """From which this host would write to another; a machine without a network has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect((ELSEWHERE, 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(route.getsockname()[0])


def test_the_driver_finds_its_host_by_address_and_by_name() -> None:
    address = own_address()
    assert find_this_host([ELSEWHERE, address], CLUSTER) == ThisHost(1, address)
    assert find_this_host([socket.gethostname(), ELSEWHERE], CLUSTER) == ThisHost(0, address)
    assert find_this_host([f"me@{ELSEWHERE}", f"me@{address}"], CLUSTER) == ThisHost(1, address)
    assert find_this_host([f"ssh://me@{address}:2222", ELSEWHERE], CLUSTER) == ThisHost(0, address)


def test_an_only_host_needs_no_address() -> None:
    assert find_this_host(["localhost"], CLUSTER) == ThisHost(0, "")


def test_a_driver_beside_the_hosts_is_refused() -> None:
    with pytest.raises(SlimeError, match=f"^hosts: none of {ELSEWHERE} is this host. Start slime on one of them"):
        find_this_host([ELSEWHERE], CLUSTER)


def test_an_address_that_nobody_can_know_is_asked_for() -> None:
    """The others are names of ~/.ssh/config alone, so that no route to them tells it."""
    with pytest.raises(SlimeError, match="is this host, but not the address at which the others reach it") as raised:
        find_this_host(["localhost", "only-in.ssh-config.invalid"], CLUSTER)
    assert "Write that address in place of 'localhost'." in str(raised.value)


def test_a_host_that_ssh_does_not_reach_is_named(tmp_path: Path) -> None:
    """The real client, at a port where nothing listens."""
    order, name = (
        Order(number=1, mark="test", environment={}, folder="", module="this", arguments=[]),
        "ssh://127.0.0.1:9",
    )
    with sessions({name: order}, tmp_path) as processes:
        patience = Patience(30, lambda: family(os.getpid()))
        assert patience.wait_for(lambda: launcher.lost(processes, "starting") is not None)
        fault = launcher.lost(processes, "starting")
    lost = (
        f"host {name}: the host was lost while starting: its session of ssh ended with exit code 255 (ssh: connect to"
    )
    assert str(fault).startswith(lost)
    assert str(fault).endswith("see to the host, then start the same command again to resume.")


def test_what_ray_says_of_its_own_is_no_cause(tmp_path: Path) -> None:
    """`ray start` writes where its logs are as it begins; what killed it later is another line, or none."""
    process, log = subprocess.Popen(["sh", "-c", "kill -9 $$"]), tmp_path / "ray.log"
    process.wait()
    begun = "2026-12-01 12:59:55,618\tINFO scripts.py:1274 -- Process exit logs will be saved to: ray/exit.log\n"
    for lines, end in ((begun, ""), (f"disk is full.\n{begun}", " (disk is full)")):
        log.write_text(lines)
        assert Session("host", 1, log, process).end() == f"its session of ssh ended with exit code -9{end}"
