"""The launcher `ssh` keeps the contract of `slime_launchers`, between two hosts on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within
from tests.namespaces import several_hosts

CODE = """
import sys
from pathlib import Path
from slime_testing.launchers import check_launcher
check_launcher("ssh", Path(sys.argv[1]), num_nodes=2, hostfile=sys.argv[2])
"""


@pytest.mark.slow
def test_contract(tmp_path: Path) -> None:
    shared, hostfile = tmp_path / "shared", tmp_path / "hosts"
    shared.mkdir()
    with several_hosts(tmp_path) as hosts:
        hostfile.write_text("\n".join(hosts.addresses))
        environment = {**os.environ, "PATH": f"{hosts.path}:{os.environ['PATH']}"}
        command = [*hosts.through, sys.executable, "-c", CODE, str(shared), str(hostfile)]
        done = run_within(250, command, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
