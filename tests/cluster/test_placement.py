"""Which bundle every process gets."""

from __future__ import annotations

from typing import Any

import pytest

from slime.cluster.placement import Slot, bundles, slots
from slime.config.schema import Device, EngineGroupConfig, Placement, SlimeConfig
from slime.topology.placement import engine_places, engine_ranks


def config(placement: str, num_trainers: int, devices: int, tp_size: int = 1, device: str = "cuda") -> SlimeConfig:
    cfg = SlimeConfig()
    cluster = cfg.cluster
    cluster.device, cluster.placement, cluster.devices_per_node = Device(device), Placement(placement), 4
    cluster.num_trainers, cfg.rollout.sglang["tp_size"] = num_trainers, tp_size
    cfg.rollout.engines["default"] = EngineGroupConfig(devices=devices)
    return cfg


def placed(cfg: SlimeConfig, order: list[int] | None = None) -> tuple[tuple[Slot, ...], tuple[tuple[Slot, ...], ...]]:
    group: Any = None
    found = slots(cfg, group, order or list(range(len(bundles(cfg)))))
    return found.trainers, found.engines


def test_colocated_processes_share_a_bundle_of_one_gpu() -> None:
    cfg = config("colocated", num_trainers=4, devices=4, tp_size=2)
    assert bundles(cfg) == [{"CPU": 2.0, "GPU": 1.0}] * 4
    trainers, engines = placed(cfg)
    assert [slot.bundle for slot in trainers] == [0, 1, 2, 3]
    assert [slot.bundle for nodes in engines for slot in nodes] == [0, 2]
    for bundle in range(4):
        there = [slot for slot in (*trainers, *(slot for nodes in engines for slot in nodes)) if slot.bundle == bundle]
        assert sum(slot.num_gpus for slot in there) <= 1
        assert sum(slot.num_cpus for slot in there) <= 2


def test_disaggregated_engines_have_gpus_of_their_own() -> None:
    cfg = config("disaggregated", num_trainers=2, devices=2, tp_size=2)
    assert bundles(cfg) == [{"CPU": 1.0, "GPU": 1.0}] * 2 + [{"CPU": 1.0, "GPU": 2.0}]
    assert placed(cfg) == ((Slot(0, 1.0, 1.0), Slot(1, 1.0, 1.0)), ((Slot(2, 1.0, 2.0),),))


@pytest.mark.parametrize("placement", ["colocated", "disaggregated"])
def test_cpu_processes_have_a_core_each(placement: str) -> None:
    cfg = config(placement, num_trainers=2, devices=1, device="cpu")
    assert placed(cfg) == ((Slot(0, 1.0, 0), Slot(1, 1.0, 0)), ((Slot(2, 1.0, 0),),))


@pytest.mark.parametrize("placement", ["colocated", "disaggregated"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_supervision_alone_reserves_nothing_for_engines(placement: str, device: str) -> None:
    cfg = config(placement, num_trainers=2, devices=1, device=device)
    cfg.algo.name = "sft"
    num_gpus = float(device == "cuda")
    assert placed(cfg) == ((Slot(0, 1.0, num_gpus), Slot(1, 1.0, num_gpus)), ())
    assert engine_places(cfg) == engine_ranks(cfg) == []
    cfg.eval.path = "heldout.jsonl"
    assert len(placed(cfg)[1]) == 1


def test_ranks_follow_the_nodes_of_their_bundles() -> None:
    """Ray may give the bundles 0 and 2 to one node, 1 and 3 to another: neighbouring ranks stay together."""
    trainers, engines = placed(config("colocated", num_trainers=4, devices=4, tp_size=2), order=[0, 2, 1, 3])
    assert [slot.bundle for slot in trainers] == [0, 2, 1, 3]
    assert [nodes[0].bundle for nodes in engines] == [0, 1]


@pytest.mark.parametrize(("placement", "bundles_of_engine"), [("colocated", [0, 4]), ("disaggregated", [8, 9])])
def test_an_engine_has_a_process_on_each_of_its_hosts(placement: str, bundles_of_engine: list[int]) -> None:
    cfg = config(placement, num_trainers=8, devices=8, tp_size=8)
    cfg.cluster.num_nodes = 4
    ((first, second),) = placed(cfg)[1]
    assert [first.bundle, second.bundle] == bundles_of_engine
    assert first.num_gpus == second.num_gpus == (0.5 if placement == "colocated" else 4)
