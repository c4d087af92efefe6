"""How weights reach the engines, and from whom."""

from __future__ import annotations

from collections.abc import Sequence

from slime.config.schema import ClusterConfig, WeightsConfig
from slime.config.weights import AUTO
from slime.topology.engines import EngineGroup
from slime.topology.placement import engine_ranks

IPC, BROADCAST = "ipc", "broadcast"
"""The transports that `auto` chooses from."""


def transport_name(weights: WeightsConfig, cluster: ClusterConfig) -> str:
    """How weights reach the engines: `weights.transport`, or what it stands for."""
    if weights.transport != AUTO:
        return weights.transport
    return IPC if shares_memory(cluster) else BROADCAST


def publishers(cluster: ClusterConfig, groups: Sequence[EngineGroup], transport: str) -> list[range]:
    """The trainer ranks that hand each engine its weights.

    Those on its own devices, rank i of them to its tensor-parallel rank i on whichever host these are; or else rank 0.
    """
    if cluster.colocated and transport == IPC:
        ranks = engine_ranks(cluster, groups)
        if ranks and ranks[-1].stop <= cluster.num_trainers:  # on cpu engines may have more ranks than that
            return ranks
    return [range(1)] * sum(group.num_engines for group in groups)


def sources(weights: WeightsConfig, cluster: ClusterConfig) -> tuple[int, ...]:
    """The trainer ranks that broadcast, of which rank 0 is the first: `weights.num_sources` of them, as far from each
    other as can be, which is how pipeline stages lie."""
    count = min(weights.num_sources, cluster.num_trainers)
    return tuple(number * cluster.num_trainers // count for number in range(count))


def shares_memory(cluster: ClusterConfig) -> bool:
    """Whether every publisher and its engine see the same memory: on GPUs, rank by rank; on cpu, on one host."""
    return cluster.colocated if cluster.on_gpus else cluster.num_nodes == 1
