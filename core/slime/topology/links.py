"""The links that a published version crosses: their ends, what they are made of, and how many bytes they carry."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from slime.config.gpus import gpu_of
from slime.config.schema import ClusterConfig
from slime.topology.placement import HostDevices
from slime.topology.topology import Topology


class Medium(enum.Enum):
    device = "device memory"
    host = "host memory"
    nvlink = "NVLink"
    pcie = "PCIe"
    network = "network"
    disk = "disk"


class Verb(enum.Enum):
    gather = "gather"
    hand_over = "hand over"


@dataclass(frozen=True)
class Link:
    """One way from a process to another: `trainer <rank>`, or `<engine> rank <tensor-parallel rank>`.

    To gather is to make whole tensors of the trainers' shards; whole versions are handed over to the engines.
    """

    verb: Verb
    source: str
    target: str
    over: Medium
    num_bytes: int


def engine_ranks(topology: Topology) -> Iterator[tuple[str, int, HostDevices]]:
    """Name of the engine, rank and place of every engine rank."""
    for engine in topology.engines:
        per_node = int(engine.fields.get("tp_size", 1)) // len(engine.nodes)
        for rank in range(per_node * len(engine.nodes)):
            yield engine.name, rank, engine.nodes[rank // per_node]


def medium_between(cluster: ClusterConfig, source: HostDevices, target: HostDevices) -> Medium:
    """What a process of one place reaches one of another through."""
    if source.node != target.node:
        return Medium.network
    if not cluster.on_gpus:
        return Medium.host
    gpu = gpu_of(cluster)
    return Medium.nvlink if gpu and gpu.nvlink_gb_s else Medium.pcie
