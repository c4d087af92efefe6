"""Runs a conversion on the hosts of a hostfile: torchrun on each of them, over ssh on the others."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from slime import plugins
from slime.config.schema import ClusterConfig
from slime.errors import SlimeError
from slime.extras import how_to_get
from slime.net import LOOPBACK, reserved_port
from slime.topology.launcher import SSH, Order, lost

TORCHRUN = "torch.distributed.run"
PASSED_ON = ("GLOO_SOCKET_IFNAME",)
"""Variables that the other hosts get: the network interface, where gloo takes the wrong one."""
_POLL_S = 0.2


def run_on_hosts(hostfile: str, arguments: Sequence[str], ranks: int) -> None:
    """Run `slime convert <arguments>` in this folder on every host, which sees it by the same path.

    Args:
        hostfile: an address a line, this host's among them.
        ranks: of torchrun on each host.

    Raises:
        SlimeError: the file is wrong, a host is not reached or lost, or the conversion failed.
    """
    launchers, cluster = plugins.load().launchers, ClusterConfig(hostfile=hostfile)
    if SSH not in launchers:
        raise SlimeError("no launcher named 'ssh' is installed", where="--hostfile", todo=how_to_get(f"launcher/{SSH}"))
    from slime_cluster.ray.reaper import reaped  # which the launcher brings

    launcher = launchers.create(SSH)
    hosts, own = launcher.hosts(cluster), launcher.this_host(cluster)
    address = own.address or LOOPBACK
    others = [host for number, host in enumerate(hosts) if number != own.number]
    mark, logs = secrets.token_hex(4), Path(tempfile.mkdtemp(prefix="slime-convert-"))
    common = [f"--nnodes={len(hosts)}", f"--nproc-per-node={ranks}", f"--master-addr={address}"]

    with reserved_port(address) as port:

        def torchrun(node: int) -> list[str]:
            return [*common, f"--master-port={port}", f"--node-rank={node}", "-m", "slime", "convert", *arguments]

        orders = {
            name: Order(
                number=node,
                mark=mark,
                environment={variable: os.environ[variable] for variable in PASSED_ON if variable in os.environ},
                folder=str(Path.cwd()),
                module=TORCHRUN,
                arguments=torchrun(node),
            )
            for node, name in enumerate(others, start=1)
        }
        with reaped(mark), launcher.run(orders, logs) as processes:
            here = subprocess.Popen([sys.executable, "-m", TORCHRUN, *torchrun(0)])
            while here.poll() is None:
                if death := lost(processes, "converting", may_end=True):
                    raise death
                time.sleep(_POLL_S)
            if here.returncode:
                todo = f"See what it printed, and the logs of the other hosts in {logs}."
                raise SlimeError(f"the conversion ended with exit code {here.returncode}", where="this host", todo=todo)
    shutil.rmtree(logs)
