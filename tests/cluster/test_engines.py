"""What the processes of engines are told at their start, and who of those that have ended is named."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from slime.cluster.engines import devices_beside
from slime.cluster.placement import slots
from slime.cluster.watch import first_end
from slime.config.schema import Device, EngineGroupConfig, Placement, SlimeConfig
from slime.engines.scratch import Rendezvous
from slime.engines.software import End
from slime.errors import SlimeError
from slime.net import LOOPBACK
from slime.topology.topology import read_topology
from slime_sglang.engine.driver.process import EngineProcess


def over_hosts(device: str, placement: str, devices_per_node: int) -> SlimeConfig:
    """Four hosts and two groups: engines of one host, and one of two."""
    cfg = SlimeConfig()
    cluster = cfg.cluster
    cluster.device, cluster.placement = Device(device), Placement(placement)
    cluster.num_nodes, cluster.devices_per_node, cluster.num_trainers = 4, devices_per_node, 4 * devices_per_node
    if placement == "disaggregated":
        cluster.num_nodes *= 2
    cfg.rollout.engines = {
        "small": EngineGroupConfig(devices=2 * devices_per_node, devices_per_engine=devices_per_node),
        "wide": EngineGroupConfig(
            devices=2 * devices_per_node,
            devices_per_engine=2 * devices_per_node,
            sglang={"schedule_policy": "lpm"},
            environment={"WHOSE": "wide"},
        ),
    }
    return cfg


LAYOUTS = {
    "cuda, colocated": ("cuda", "colocated", 4),
    "cuda, disaggregated": ("cuda", "disaggregated", 4),
    "cpu": ("cpu", "disaggregated", 1),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_process_is_told_what_is_found_at_its_start(layout: tuple[str, str, int], tmp_path: Path) -> None:
    topology = read_topology(over_hosts(*layout))
    assert [len(nodes) for nodes in slots(topology)[1]] == [1, 1, 2]
    for engine in topology.engines:
        for rank in range(len(engine.nodes)):
            several = Rendezvous("10.0.0.1:4000", "/the/ranks") if len(engine.nodes) > 1 else None
            process = EngineProcess(topology, engine.index, rank, several, host=LOOPBACK, log=tmp_path / "engine.log")
            told = process.fields(port=30000, bootstrap_port=8998)
            assert (told.get("node_rank"), told.get("nnodes")) == ((rank, 2) if several else (None, None))
            assert told["random_seed"] == topology.config.run.seed + engine.index
            meet_in = "/the/ranks" if several else "/the/scratch/ranks"
            environment = process.environment("/the/scratch")
            assert environment["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == f"file://{meet_in}"


def test_processes_of_several_hosts_meet_at_the_first_ones_port(tmp_path: Path) -> None:
    topology = read_topology(over_hosts("cuda", "colocated", 4))
    meeting = Rendezvous("10.0.0.1:4000")
    process = EngineProcess(topology, 2, 1, meeting, host="10.0.0.2", log=tmp_path / "engine.log")
    assert process.fields(port=30000, bootstrap_port=8998)["dist_init_addr"] == "10.0.0.1:4000"
    environment = process.environment("/the/scratch")
    assert "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE" not in environment
    assert environment["SGLANG_HOST_IP"] == "10.0.0.2"


def test_colocated_processes_get_the_devices_of_the_trainers_at_their_places() -> None:
    topology = read_topology(over_hosts("cuda", "colocated", 4))
    devices = [f"GPU-{trainer.place.node}-{trainer.place.devices[0]}" for trainer in topology.trainers]
    given = devices_beside(topology, devices)
    for engine, of_engine in zip(topology.engines, given, strict=True):
        for place, of_process in zip(engine.nodes, of_engine, strict=True):
            assert of_process == [f"GPU-{place.node}-{device}" for device in place.devices]
        beside = [devices[rank] for rank in engine.publishers]
        assert [device for of_process in of_engine for device in of_process] == beside, "rank i publishes to rank i"


def test_engines_with_devices_of_their_own_are_told_none() -> None:
    assert devices_beside(read_topology(over_hosts("cuda", "disaggregated", 4)), []) == [[[]], [[]], [[], []]]


def end(name: str, at: float, *, killed: bool = False) -> End:
    return End(killed, at, SlimeError("ended", where=name, todo="Read its log."))


def test_of_several_ends_the_first_is_named_and_before_it_one_that_was_killed() -> None:
    """The others are of ranks that lost it; clocks of two hosts may differ by more than the ends do."""

    def named(*ends: End) -> set[str]:
        return {str(first_end(order)).split(":")[0] for order in itertools.permutations([*ends, None])}

    assert first_end([None, None]) is None
    assert named(end("first", 9.99), end("second", 10.0)) == {"first"}
    assert named(end("gave up", 9.99), end("killed", 10.0, killed=True)) == {"killed"}
