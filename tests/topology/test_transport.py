"""From whom engines get their weights, and how."""

from __future__ import annotations

import pytest

from slime.config.schema import Device, EngineGroupConfig, Placement, SlimeConfig
from slime.topology.topology import read_topology
from slime.topology.transport import sources
from slime.weights.transports import transport_problems


def config(device: str, placement: str, num_nodes: int = 1, num_trainers: int = 8) -> SlimeConfig:
    """An engine of a host, and one of all hosts."""
    cfg = SlimeConfig()
    cfg.cluster.device, cfg.cluster.placement = Device(device), Placement(placement)
    cfg.cluster.num_nodes, cfg.cluster.devices_per_node, cfg.cluster.num_trainers = num_nodes, 4, num_trainers
    cfg.rollout.engines = {
        "small": EngineGroupConfig(devices=4, devices_per_engine=4),
        "wide": EngineGroupConfig(devices=4 * num_nodes, devices_per_engine=4 * num_nodes),
    }
    return cfg


def publishers_of(cfg: SlimeConfig) -> list[range]:
    return [engine.publishers for engine in read_topology(cfg).engines]


def test_colocated_engines_are_served_rank_by_rank_over_hosts() -> None:
    cfg = config("cuda", "colocated", num_nodes=2, num_trainers=12)
    assert read_topology(cfg).transport == "ipc"
    assert publishers_of(cfg) == [range(4), range(4, 12)]


@pytest.mark.parametrize(
    ("device", "placement", "num_nodes", "transport"),
    [
        ("cuda", "disaggregated", 1, "broadcast"),
        ("cuda", "disaggregated", 2, "broadcast"),
        ("cpu", "disaggregated", 1, "ipc"),
        ("cpu", "disaggregated", 2, "broadcast"),
        ("cpu", "colocated", 2, "broadcast"),
    ],
)
def test_elsewhere_the_first_rank_serves_all(device: str, placement: str, num_nodes: int, transport: str) -> None:
    cfg = config(device, placement, num_nodes)
    assert (read_topology(cfg).transport, publishers_of(cfg)) == (transport, [range(1)] * 2)
    assert list(transport_problems(read_topology(cfg))) == []


@pytest.mark.parametrize(("num_trainers", "expected"), [(8, [range(4), range(4, 8)]), (7, [range(1)] * 2)])
def test_colocated_on_cpu_by_rank_where_there_are_as_many(num_trainers: int, expected: list[range]) -> None:
    assert publishers_of(config("cpu", "colocated", num_trainers=num_trainers)) == expected


@pytest.mark.parametrize("placement", ["colocated", "disaggregated"])
def test_through_a_disk_rank_0_serves_all_wherever_they_are(placement: str) -> None:
    cfg = config("cuda", placement, num_nodes=2)
    cfg.weights.transport = "disk"
    assert (read_topology(cfg).transport, publishers_of(cfg)) == ("disk", [range(1)] * 2)
    assert list(transport_problems(read_topology(cfg))) == []


def test_memory_of_another_host_is_refused() -> None:
    cfg = config("cpu", "disaggregated", num_nodes=2)
    cfg.weights.transport = "ipc"
    (problem,) = transport_problems(read_topology(cfg))
    assert str(problem) == "weights.transport: is ipc, but engines and trainers share no memory. Leave it out."


@pytest.mark.parametrize(
    ("num_sources", "num_trainers", "expected"), [(1, 8, (0,)), (2, 8, (0, 4)), (3, 8, (0, 2, 5)), (8, 2, (0, 1))]
)
def test_sources_lie_far_from_each_other(num_sources: int, num_trainers: int, expected: tuple[int, ...]) -> None:
    cfg = config("cuda", "disaggregated", num_trainers=num_trainers)
    cfg.weights.num_sources = num_sources
    assert sources(cfg.weights, cfg.cluster) == expected
    assert list(transport_problems(read_topology(cfg))) == []


def test_several_sources_without_broadcast_are_refused() -> None:
    cfg = config("cpu", "disaggregated")
    cfg.weights.num_sources = 2
    (problem,) = transport_problems(read_topology(cfg))
    assert str(problem) == (
        "weights.num_sources: is 2, but only what is broadcast has several sources. "
        "Leave it out, or set weights.transport=broadcast."
    )
