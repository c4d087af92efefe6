"""What to type on each host of a cluster of several: Ray first, then the run on the first host."""

from __future__ import annotations

from slime.config.schema import ClusterConfig
from slime.topology.launcher import launcher_name

RAY_PORT = 6379
FIRST_HOST = "HOST0"
"""Stands for the address of the first host."""


def commands(cluster: ClusterConfig) -> list[dict[str, str]]:
    """`{"host": ..., "command": ...}` in order; none where the run joins a Ray that is there, or starts its own: by a
    launcher, on one host, and on cpu without a launcher, where that host stands for all."""
    if cluster.num_hosts == 1 or cluster.ray_address or launcher_name(cluster) or not cluster.on_gpus:
        return []
    address, last = f"{FIRST_HOST}:{RAY_PORT}", cluster.num_hosts - 1
    others = f"host {last}" if last == 1 else f"hosts 1-{last}"
    head = ["start", "--head", f"--port={RAY_PORT}", *_resources(cluster)]
    # `ray start --address` does not look for the token by itself, as `ray start --head` does.
    return [
        {"host": "host 0", "command": f"RAY_AUTH_MODE=token ray {' '.join(head)}"},
        {"host": others, "command": "copy ~/.ray/auth_token of host 0 to the same place"},
        {"host": others, "command": f"RAY_AUTH_MODE=token ray {' '.join(join(cluster, address))}"},
        {"host": "host 0", "command": f"slime ... cluster.ray_address={address}"},
    ]


def join(cluster: ClusterConfig, address: str, num_slots: int | None = None) -> list[str]:
    """Arguments of `ray` for a host that joins the Ray at `address`, with `num_slots` logical CPUs on cpu."""
    return ["start", f"--address={address}", *_resources(cluster, num_slots)]


def _resources(cluster: ClusterConfig, num_slots: int | None = None) -> list[str]:
    if cluster.on_gpus:
        return [f"--num-gpus={cluster.devices_per_node}", "--disable-usage-stats"]
    slots = [] if num_slots is None else [f"--num-cpus={num_slots}"]
    return [*slots, "--disable-usage-stats"]
