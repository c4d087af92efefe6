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


RAY = "[2026-12-01 13:33:18,127 W 8 8] network_util.cc:357: Unable to detect local IP address.\n"
RAY += "2026-12-01 13:33:26,412\tINFO scripts.py:1266 -- This command will now block forever until terminated.\n"
"""As Ray prints it last, once it is up on a host."""


@pytest.mark.parametrize(
    ("log", "told"),
    [(RAY, ""), (f"{RAY}Timeout, server 10.0.0.2 not responding.\n", " (Timeout, server 10.0.0.2 not responding)")],
)
def test_a_session_ends_with_its_last_line_unless_that_is_of_a_good_start(tmp_path: Path, log: str, told: str) -> None:
    (tmp_path / "log").write_text(log)
    with subprocess.Popen(["false"]) as process:
        process.wait()
        session = Session("10.0.0.2", 1, tmp_path / "log", process)
        assert session.end() == f"its session of ssh ended with exit code 1{told}"
