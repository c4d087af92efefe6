"""A conversion over two hosts that a hostfile joins (`tests/namespaces.py` says what a host is here, and what ssh)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from plugins.tools.tests.convert.test_dist import MOE
from slime_cluster.ray.reaper import wait_until_gone
from slime_testing.models import write_checkpoint
from slime_testing.patience import run_within
from tests.namespaces import Hosts, several_hosts
from tests.running import GONE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with several_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


def test_a_conversion_takes_both(hosts: Hosts, tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "dist"
    write_checkpoint(MOE, source, dtype=torch.bfloat16)
    (tmp_path / "hosts").write_text("\n".join(hosts.addresses))
    layout = ["--layout", "pipeline_model_parallel_size=2", "--processes", "1", "--hostfile", "hosts"]

    def convert(*words: str) -> subprocess.CompletedProcess[str]:
        return run_within(
            200,
            [*hosts.through, sys.executable, "-m", "slime", "convert", *words],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{hosts.path}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "eth0"},
            check=False,
        )

    done = convert("hf-to-dist", "source", "dist", *layout)
    assert done.returncode == 0, done.stderr
    assert wait_until_gone(hosts.second.running, GONE_S) == set()
    assert {path.name[:4] for path in destination.glob("__*_*.distcp")} == {"__0_", "__1_"}, (
        "a file of each host's rank"
    )
    refused = convert("hf-to-dist", "source", "dist", *layout)
    assert refused.stderr.endswith("slime: dist: the folder exists already. Choose another, or remove it.\n")
