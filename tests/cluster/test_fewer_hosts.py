"""Whether a run goes on with the hosts that are left, and with which ranks."""

from __future__ import annotations

from typing import Any

import pytest

from slime.cluster.fewer_hosts import FewerHosts
from slime.cluster.placement import Slot
from slime.cluster.watch import Member
from slime.config.schema import ClusterConfig, SlimeConfig
from slime.topology.topology import Topology, read_topology


def rank_of(topology: Topology, rank: int, slot: Slot) -> Member:
    return Member(f"trainer-{rank}", (topology.cluster.num_trainers, slot.bundle))


def on_four_hosts(min_hosts: int | None, **sizes: int) -> FewerHosts:
    """Two trainer ranks on each of the hosts a, b, c, d, and an engine on a."""
    cluster = ClusterConfig(name="it", num_nodes=4, num_trainers=8, devices_per_node=4, min_hosts=min_hosts)
    cfg = SlimeConfig(cluster=cluster)
    cfg.train.megatron = sizes
    trainers = [Member(f"trainer-{rank}", None, node="abcd"[rank // 2]) for rank in range(8)]
    slots = [Slot(rank // 2, 1.0, 0.0) for rank in range(8)]
    return FewerHosts(read_topology(cfg), trainers, [Member("engine-0", None, node="a")], slots, rank_of)


@pytest.mark.parametrize(
    ("min_hosts", "sizes", "lost", "suffice"),
    [
        (3, {}, "b", True),
        (4, {}, "b", False),
        (None, {}, "b", False),
        (1, {}, "bcd", True),
        (1, {}, "a", False),  # which has the engine
        (1, {"tensor_model_parallel_size": 2}, "d", True),
        (1, {"tensor_model_parallel_size": 4}, "d", False),  # 6 ranks
        (1, {"tensor_model_parallel_size": 4}, "cd", True),
        (1, {"expert_model_parallel_size": 4}, "d", False),
        (1, {"expert_model_parallel_size": 2}, "d", True),
    ],
)
def test_a_run_goes_on_where_the_layout_fits(min_hosts: Any, sizes: dict[str, int], lost: str, suffice: bool) -> None:
    assert on_four_hosts(min_hosts, **sizes).suffice(lost) is suffice


def test_ranks_that_are_left_are_numbered_again_where_they_are() -> None:
    fewer = on_four_hosts(1, tensor_model_parallel_size=2)
    ranks, change = fewer.without("b")
    assert [(rank.name, rank.actor) for rank in ranks] == [
        (f"trainer-{rank}", (6, bundle)) for rank, bundle in enumerate([0, 0, 2, 2, 3, 3])
    ]
    assert change == (
        "the run goes on with 6 trainer ranks (dp 3) on 3 hosts in the place of 8 trainer ranks (dp 4) on 4: a step "
        "takes longer, and its batch is the same"
    )
