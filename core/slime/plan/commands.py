"""What to type on each host of a cluster of several: Ray first, then the run on the first host."""

from __future__ import annotations

from slime.config.schema import Device, SlimeConfig

RAY_PORT = 6379
FIRST_HOST = "HOST0"
"""Stands for the address of the first host."""


def commands(cfg: SlimeConfig) -> list[dict[str, str]]:
    """`{"host": ..., "command": ...}` in order; none where the run joins a Ray that is there, or starts its own: on one
    host, and on cpu, where that host stands for all."""
    if cfg.cluster.num_nodes == 1 or cfg.cluster.ray_address or cfg.cluster.device is Device.cpu:
        return []
    address, last = f"{FIRST_HOST}:{RAY_PORT}", cfg.cluster.num_nodes - 1
    options = f"--num-gpus={cfg.cluster.devices_per_node} --disable-usage-stats"
    others = f"host {last}" if last == 1 else f"hosts 1-{last}"
    # `ray start --address` does not look for the token by itself, as `ray start --head` does.
    return [
        {"host": "host 0", "command": f"RAY_AUTH_MODE=token ray start --head --port={RAY_PORT} {options}"},
        {"host": others, "command": "copy ~/.ray/auth_token of host 0 to the same place"},
        {"host": others, "command": f"RAY_AUTH_MODE=token ray start --address={address} {options}"},
        {"host": "host 0", "command": f"slime ... cluster.ray_address={address}"},
    ]
