"""Which host and devices every process gets, and what does not fit."""

from __future__ import annotations

import re

import pytest

from slime.config.schema import Device, EngineGroupConfig, Placement, SlimeConfig
from slime.topology.placement import idle_devices, placement_problems, span_problems
from slime.topology.topology import read_topology


def config(
    num_nodes: int,
    trainers: int,
    engines: dict[str, tuple[int, int]],
    placement: str = "colocated",
    device: str = "cuda",
) -> SlimeConfig:
    """`engines`: group -> (devices, devices per engine)."""
    cfg = SlimeConfig()
    cluster = cfg.cluster
    cluster.name, cluster.device, cluster.placement = "it", Device(device), Placement(placement)
    cluster.num_nodes, cluster.devices_per_node, cluster.num_trainers = num_nodes, 8, trainers
    cfg.rollout.engines = {
        name: EngineGroupConfig(devices=devices, devices_per_engine=per_engine)
        for name, (devices, per_engine) in engines.items()
    }
    return cfg


def words(cfg: SlimeConfig) -> list[str]:
    return [", ".join(map(str, places)) for places in read_topology(cfg).engine_places]


def test_trainers_fill_hosts_and_colocated_engines_share_them() -> None:
    cfg = config(2, 16, {"a": (8, 4), "b": (8, 8)})
    assert [str(place) for place in read_topology(cfg).trainer_places][7:9] == ["node 0 device 7", "node 1 device 0"]
    assert words(cfg) == ["node 0 device 0-3", "node 0 device 4-7", "node 1 device 0-7"]
    assert read_topology(cfg).engine_ranks == [range(4), range(4, 8), range(8, 16)]
    assert list(placement_problems(cfg.cluster, read_topology(cfg).groups)) == []


def test_an_engine_over_hosts_takes_whole_ones() -> None:
    cfg = config(4, 8, {"a": (16, 16)}, "disaggregated")
    assert words(cfg) == ["node 1 device 0-7, node 2 device 0-7"]
    assert list(placement_problems(cfg.cluster, read_topology(cfg).groups)) == []


def test_an_engine_that_fits_a_host_stays_on_one() -> None:
    cfg = config(2, 6, {"a": (8, 4)}, "disaggregated")
    assert words(cfg) == ["node 1 device 0-3", "node 1 device 4-7"]


def test_cpu_engines_take_hosts_in_turn() -> None:
    cfg = config(2, 2, {"a": (2, 1), "b": (16, 16)}, device="cpu")
    assert words(cfg) == ["node 0", "node 1", "node 0, node 1"]


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (config(2, 16, {"a": (12, 12)}, "disaggregated"), "is 12: an engine over several hosts .* Use 8 or 16"),
        (config(1, 8, {"a": (16, 16)}), "an engine needs 16 devices, which are 2 hosts. Use at most 8"),
    ],
)
def test_engines_that_do_not_take_whole_hosts(cfg: SlimeConfig, message: str) -> None:
    (problem,) = span_problems(cfg.cluster, read_topology(cfg).groups)
    assert re.search(message, str(problem))


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (config(2, 16, {"a": (8, 8)}), "engines take 8 devices and trainers 16"),
        (config(2, 12, {"a": (6, 6), "b": (6, 6)}), "cut by the end of a host"),
        (config(1, 8, {"a": (8, 8)}, "disaggregated"), "the run needs 16 .8 trainer ranks and 8 engine devices"),
        (config(1, 9, {"a": (8, 8)}, device="cpu"), "the run needs 9 .one for each trainer rank"),
    ],
)
def test_what_does_not_fit(cfg: SlimeConfig, message: str) -> None:
    found = [str(problem) for problem in placement_problems(cfg.cluster, read_topology(cfg).groups)]
    assert any(re.search(message, problem) for problem in found), found


@pytest.mark.parametrize(
    ("cfg", "told"),
    [
        (config(1, 8, {"a": (8, 8)}), []),
        (config(1, 4, {"a": (4, 4)}), ["cluster.num_trainers: 4 of 8 devices have nothing to do. Raise it from 4,"]),
        (config(1, 4, {"a": (2, 2)}, "disaggregated"), ["cluster.num_trainers: 2 of 8 devices have nothing to do."]),
        (
            config(64, 8, {"a": (8, 8)}),
            ["cluster.num_nodes: 63 of 64 hosts have nothing to do. Set cluster.num_nodes=1, or use them."],
        ),
        (config(3, 2, {"a": (2, 1)}, device="cpu"), ["cluster.num_nodes: 1 of 3 hosts have nothing to do."]),
    ],
)
def test_what_has_nothing_to_do_is_told(cfg: SlimeConfig, told: list[str]) -> None:
    found = [str(warning) for warning in idle_devices(cfg.cluster, read_topology(cfg).places)]
    assert len(found) == len(told)
    assert all(text in warning for text, warning in zip(told, found, strict=True))
