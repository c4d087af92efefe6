"""Which bundle every process gets: that of its host in the topology."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import pytest

from slime.cluster.placement import Slot, bundles, excluded_nodes, slots, suffices
from slime.config.schema import Device, EngineGroupConfig, Placement, SlimeConfig
from slime.errors import SlimeError
from slime.topology.topology import read_topology
from slime_testing.patience import run_within


def config(
    placement: str, num_trainers: int, devices: int, tp_size: int = 1, device: str = "cuda", num_nodes: int = 1
) -> SlimeConfig:
    cfg = SlimeConfig()
    cluster = cfg.cluster
    cluster.device, cluster.placement, cluster.devices_per_node = Device(device), Placement(placement), 4
    cluster.num_trainers, cfg.rollout.sglang["tp_size"], cluster.num_nodes = num_trainers, tp_size, num_nodes
    cfg.rollout.engines["default"] = EngineGroupConfig(devices=devices)
    return cfg


def test_colocated_engines_take_no_device_of_their_own() -> None:
    cfg = config("colocated", num_trainers=4, devices=4, tp_size=2)
    assert bundles(read_topology(cfg)) == [{"CPU": 6.0, "GPU": 4.0}]
    assert slots(read_topology(cfg)) == ([Slot(0, 1.0, 1.0)] * 4, [(Slot(0, 1.0, 0.0),)] * 2)


def test_disaggregated_engines_have_gpus_of_their_own() -> None:
    cfg = config("disaggregated", num_trainers=2, devices=2, tp_size=2)
    assert bundles(read_topology(cfg)) == [{"CPU": 3.0, "GPU": 4.0}]
    assert slots(read_topology(cfg)) == ([Slot(0, 1.0, 1.0)] * 2, [(Slot(0, 1.0, 2.0),)])


@pytest.mark.parametrize("placement", ["colocated", "disaggregated"])
def test_cpu_processes_have_a_core_each(placement: str) -> None:
    cfg = config(placement, num_trainers=2, devices=1, device="cpu")
    assert bundles(read_topology(cfg)) == [{"CPU": 3.0}]
    assert slots(read_topology(cfg)) == ([Slot(0, 1.0, 0)] * 2, [(Slot(0, 1.0, 0),)])


@pytest.mark.parametrize("placement", ["colocated", "disaggregated"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_supervision_alone_reserves_nothing_for_engines(placement: str, device: str) -> None:
    cfg = config(placement, num_trainers=2, devices=1, device=device)
    cfg.algo.name = "sft"
    assert slots(read_topology(cfg)) == ([Slot(0, 1.0, float(device == "cuda"))] * 2, [])
    assert read_topology(cfg).engine_places == read_topology(cfg).engine_ranks == []
    cfg.eval.path = "heldout.jsonl"
    assert len(slots(read_topology(cfg))[1]) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("placement", "num_trainers", "devices", "tp_size"),
    [("colocated", 8, 8, 2), ("disaggregated", 6, 6, 2), ("disaggregated", 4, 8, 8), ("disaggregated", 2, 6, 1)],
)
def test_a_process_goes_to_the_host_that_the_topology_says(
    placement: str, num_trainers: int, devices: int, tp_size: int, device: str
) -> None:
    """However trainers and engines of several sizes lie beside each other on a host."""
    cfg = config(placement, num_trainers, devices, tp_size, device, num_nodes=3)
    trainers, engines = slots(read_topology(cfg))
    assert [slot.bundle for slot in trainers] == [place.node for place in read_topology(cfg).trainer_places]
    assert [[slot.bundle for slot in nodes] for nodes in engines] == [
        [place.node for place in places] for places in read_topology(cfg).engine_places
    ]
    for number, bundle in enumerate(bundles(read_topology(cfg))):
        there = [slot for slot in [*trainers, *chain(*engines)] if slot.bundle == number]
        assert bundle["CPU"] == len(there)
        assert bundle.get("GPU", 0) == sum(slot.num_gpus for slot in there) <= 4


def test_hosts_that_nobody_is_on_are_not_reserved() -> None:
    cfg = config("colocated", num_trainers=4, devices=4, num_nodes=3)
    assert len(bundles(read_topology(cfg))) == 1


def test_a_spare_host_has_room_for_any() -> None:
    cfg = config("disaggregated", num_trainers=4, devices=2, num_nodes=2)
    used = bundles(read_topology(cfg))
    cfg.cluster.spares = 2
    assert bundles(read_topology(cfg)) == [*used, *[{"CPU": 4.0, "GPU": 4.0}] * 2]
    assert used == [{"CPU": 4.0, "GPU": 4.0}, {"CPU": 2.0, "GPU": 2.0}]
    assert read_topology(cfg).num_processes == [4, 2, 4, 4]


def test_hosts_are_excluded_by_name_or_address() -> None:
    nodes = [
        {"NodeID": f"id-{name}", "NodeManagerHostname": name, "NodeManagerAddress": address}
        for name, address in (("alpha", "10.0.0.1"), ("beta", "10.0.0.2"))
    ]
    assert excluded_nodes(["beta", "10.0.0.1"], nodes) == ["id-beta", "id-alpha"]
    with pytest.raises(SlimeError) as raised:
        excluded_nodes(["betta"], nodes)
    assert str(raised.value) == "cluster.exclude: Ray has no host 'betta'. Did you mean 'beta'?"


@pytest.mark.parametrize(("placement", "hosts"), [("colocated", [0, 1]), ("disaggregated", [2, 3])])
def test_an_engine_has_a_process_on_each_of_its_hosts(placement: str, hosts: list[int]) -> None:
    cfg = config(placement, num_trainers=8, devices=8, tp_size=8, num_nodes=4)
    ((first, second),) = slots(read_topology(cfg))[1]
    assert [first.bundle, second.bundle] == hosts
    assert first.num_gpus == second.num_gpus == (0.0 if placement == "colocated" else 4.0)


def test_what_a_cluster_could_never_hold_is_known_without_waiting() -> None:
    node, smaller = {"CPU": 16.0, "GPU": 8.0}, {"CPU": 16.0, "GPU": 4.0}
    whole, half = {"CPU": 8.0, "GPU": 8.0}, {"CPU": 8.0, "GPU": 4.0}
    assert suffices([node, smaller, node], [half, whole, whole], apart=True)
    assert not suffices([node, smaller, smaller], [half, whole, whole], apart=True), "two whole hosts, and one is there"
    assert not suffices([node, node], [half, half, half], apart=True), "three hosts, and two are there"
    assert not suffices([{"CPU": 16.0}], [half], apart=True), "no GPU"
    assert suffices([{"CPU": 4.0}], [{"CPU": 2.0}, {"CPU": 2.0}], apart=False)
    assert not suffices([{"CPU": 4.0}], [{"CPU": 2.0}, {"CPU": 3.0}], apart=False)
    assert not suffices([{"CPU": 2.0}, {"CPU": 2.0}], [{"CPU": 3.0}], apart=False)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ray_puts_every_actor_where_the_topology_says() -> None:
    """On five raylets with two devices each, one of which another job has."""
    program = Path(__file__).parents[2] / "benchmarks/placement.py"
    command = [sys.executable, str(program), "--hosts", "4", "--devices", "2", "--actors"]
    done = run_within(380, command, check=False)
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.endswith(" |")][1:]
    assert [(row[1], row[2], row[4]) for row in rows] == [("4", "12", "none |"), ("4", "6", "none |")], done
    assert done.returncode == 0
