"""The preflight of prefill and decode engines on three hosts, each a network namespace of this machine; the bytes are
mooncake's, over TCP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_cluster.ray.reaper import wait_until_gone
from slime_testing.patience import run_within
from tests.namespaces import Hosts, several_hosts
from tests.running import GONE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.usefixtures("_mooncake")]

SLOW_MIB_S = 200e6 / 8 / 2**20
SLOW = ("tbf", "rate", "200mbit", "burst", "1mb", "latency", "100ms")
WORDS = (
    "+model=glm4-tiny",
    "+cluster=local-pd",
    "cluster.num_nodes=3",
    "cluster.hostfile=hosts",
    "cluster.socket_interface=eth0",
    "rollout.engines.prefill.devices=2",  # on the first two hosts, the decode engine on the third
    "eval.path=null",
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with several_hosts(tmp_path_factory.mktemp("hosts"), 3) as hosts:
        yield hosts


def preflight(hosts: Hosts, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "hosts").write_text("\n".join(hosts.addresses))
    done = run_within(
        200,
        [*hosts.through, sys.executable, "-m", "slime", "preflight", *WORDS, *words],
        cwd=folder,
        env={**os.environ, "PATH": f"{hosts.path}:{os.environ['PATH']}"},
        check=False,
    )
    for host in hosts.others.values():
        assert wait_until_gone(host.running, GONE_S) == set()
    return done


def test_every_pair_is_measured_and_the_slow_host_named(hosts: Hosts, tmp_path: Path) -> None:
    """The kernel lets 200 Mbit a second out of the second host."""
    first, second, third = hosts.addresses
    hosts.second.run("tc", "qdisc", "add", "dev", "eth0", "root", *SLOW)
    try:
        told = preflight(hosts, tmp_path)
    finally:
        hosts.second.run("tc", "qdisc", "delete", "dev", "eth0", "root")
    assert told.returncode == 0, told.stderr
    line = rf"^  to {third} +([\d.]+) (\w+)/s of KV caches by mooncake over TCP$"
    units = {"KiB": 2**-10, "MiB": 1, "GiB": 2**10}
    of_host = {part.split()[0]: part for part in re.split(r"^(?=10\.)", told.stdout, flags=re.MULTILINE) if part}
    rates = {
        host: float(rate) * units[unit]
        for host, part in of_host.items()
        for rate, unit in re.findall(line, part, re.MULTILINE)
    }
    assert rates.keys() == {first, second}, told.stdout
    assert rates[second] < 1.1 * SLOW_MIB_S < rates[first], told.stdout  # a burst goes through at once
    slow = re.findall(r"^preflight: (\S+): its transfers of KV caches carry", told.stdout, re.MULTILINE)
    assert slow == [second], told.stdout


def test_a_host_where_mooncake_finds_no_port_is_named_with_the_key(hosts: Hosts, tmp_path: Path) -> None:
    """It takes two ports, and the decode engine is given one. The control is the test above."""
    variable = "+rollout.engines.decode.environment.MC_M{}_PRC_PORT=15500"
    refused = preflight(hosts, tmp_path, variable.format("IN"), variable.format("AX"))
    assert refused.returncode == 2, refused.stdout
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"slime: preflight: {hosts.addresses[2]}: mooncake does not start at ")
    assert "MC_MIN_PRC_PORT" in line
    assert "cluster.environment" in line


def test_a_device_that_no_host_has_is_named_with_the_key(hosts: Hosts, tmp_path: Path) -> None:
    """Where the recipe asks for RDMA; nothing is sent then. The control is the first test."""
    rdma = ("rollout.sglang.disaggregation_transfer_backend=mooncake", "cluster.ib_devices=[mlx5_9]")
    refused = preflight(hosts, tmp_path, *rdma)
    assert refused.returncode == 2, refused.stdout
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"slime: preflight: {', '.join(hosts.addresses)}: there is no InfiniBand device mlx5_9.")
    assert "cluster.ib_devices" in line
