"""Before anything loads: the run takes the folders that it writes, and plugins look at its hosts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from slime import plugins
from slime.run_dir import RunDir
from slime.topology.topology import Topology
from slime.weights.transports import written_folders


def require_ready(
    topology: Topology, run: RunDir, nodes: Collection[str], *, writes: bool, is_left: bool = False
) -> None:
    """Take the folders, then ask every installed preflight (hook `slime_preflights`). Ray is up, and nothing of the run
    has started.

    Args:
        nodes: Ray's ids of the hosts.
        writes: the run will write checkpoints.
        is_left: its processes are there, left by another driver, for whom the hosts were ready.

    Raises:
        SlimeError: a folder is another run's, or hosts are not ready: all that is wrong, each with its hosts.
    """
    take_folders(topology, run)
    for preflight in () if is_left else plugins.load().registries["preflight"]:
        preflight.factory(topology, run, nodes, writes)


def take_folders(topology: Topology, run: RunDir) -> dict[str, Path]:
    """Lock the folders that the run writes besides its run directory, until it ends; the lock file of each, by the key
    of the config that names the folder. Locking again changes nothing.

    Raises:
        SlimeError: another run holds one, or it cannot be written.
    """
    return {key: run.take(folder, key) for key, folder in written_folders(topology).items()}
