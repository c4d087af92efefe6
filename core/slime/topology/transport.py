"""How weights reach the engines."""

from __future__ import annotations

from slime.config.schema import ClusterConfig, WeightsConfig
from slime.config.weights import AUTO

IPC, BROADCAST = "ipc", "broadcast"
"""The transports that `auto` chooses from."""


def transport_name(weights: WeightsConfig, cluster: ClusterConfig) -> str:
    """`weights.transport`, or what it stands for."""
    if weights.transport != AUTO:
        return weights.transport
    return IPC if shares_memory(cluster) else BROADCAST


def shares_memory(cluster: ClusterConfig) -> bool:
    """Whether every publisher and its engine see the same memory: on GPUs, rank by rank; on cpu, on one host."""
    return cluster.colocated if cluster.on_gpus else cluster.num_nodes == 1
