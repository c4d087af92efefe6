"""How weights reach the engines."""

from __future__ import annotations

from slime.config.schema import ClusterConfig, RolloutConfig, WeightsConfig
from slime.config.weights import AUTO

IPC, BROADCAST, DISK = "ipc", "broadcast", "disk"
"""The transports that `auto` chooses from."""


def transport_name(weights: WeightsConfig, rollout: RolloutConfig, cluster: ClusterConfig) -> str:
    """`weights.transport`, or what it stands for."""
    if weights.transport != AUTO:
        return weights.transport
    if rollout.addresses:
        return DISK
    return IPC if shares_memory(cluster) else BROADCAST


def shares_memory(cluster: ClusterConfig) -> bool:
    """Whether every publisher and its engine see the same memory: on GPUs, rank by rank; on cpu, on one host."""
    return cluster.colocated if cluster.on_gpus else cluster.num_hosts == 1


def sources(weights: WeightsConfig, cluster: ClusterConfig) -> tuple[int, ...]:
    """The trainer ranks that broadcast, of which rank 0 is the first: `weights.num_sources` of them, as far from each
    other as can be, which is how pipeline stages lie."""
    count = min(weights.num_sources, cluster.num_trainers)
    return tuple(number * cluster.num_trainers // count for number in range(count))
