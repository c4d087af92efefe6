"""The launcher `ssh`: the hosts of a hostfile, a session of ssh on each of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from slime.config.schema import ClusterConfig
from slime.errors import SlimeError
from slime.topology.launcher import Order, RemoteProcess, ThisHost
from slime_cluster.ssh.hostfile import hostfile_problems, read_hostfile, used


class SshLauncher:
    def problems(self, cluster: ClusterConfig) -> Iterator[SlimeError]:
        yield from hostfile_problems(cluster)

    def hosts(self, cluster: ClusterConfig) -> Sequence[str]:
        return used(read_hostfile(str(cluster.hostfile)), cluster)

    def this_host(self, cluster: ClusterConfig) -> ThisHost:
        from slime_cluster.ssh.this_host import find_this_host  # psutil with it, which a plan does without

        return find_this_host(self.hosts(cluster), cluster)

    def run(self, orders: Mapping[str, Order], logs: Path) -> AbstractContextManager[Sequence[RemoteProcess]]:
        from slime_cluster.ssh.session import sessions

        return sessions(orders, logs)
