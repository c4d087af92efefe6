"""Whether Ray, and the run's other hosts, can be brought up as the config says."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime.config.schema import ClusterConfig
from slime.errors import SlimeError, did_you_mean
from slime.extras import how_to_get
from slime.plugins import Plugins
from slime.topology.launcher import launcher_name

_ADDRESS = re.compile(r"auto|[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def launcher_problems(cluster: ClusterConfig, plugins: Plugins) -> Iterator[SlimeError]:
    name, where = launcher_name(cluster), "cluster.launcher" if cluster.launcher else "cluster.hostfile"
    if name is None:
        return
    if cluster.ray_address is not None:
        todo = "Remove one: the hostfile is for a Ray that slime starts, the address for one that runs already."
        yield SlimeError("cannot be set together with cluster.ray_address", where=where, todo=todo)
    if name in plugins.launchers:
        yield from plugins.launchers.create(name).problems(cluster)
        return
    todo = how_to_get(f"launcher/{name}") or did_you_mean(name, plugins.launchers.names())
    yield SlimeError(f"no launcher named '{name}' is installed", where=where, todo=todo)


def address_problems(cluster: ClusterConfig) -> Iterator[SlimeError]:
    address = cluster.ray_address
    if address is not None and not _ADDRESS.fullmatch(address):
        todo = "Write <host>:<port> as 'ray start --head' prints it, or auto for the cluster that this host is in."
        yield SlimeError(f"'{address}' is not an address", where="cluster.ray_address", todo=todo)
