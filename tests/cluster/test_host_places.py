"""Which hosts of a Ray that was there before a run takes."""

from __future__ import annotations

import sys

import pytest

from slime_testing.patience import run_within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

EXCLUDING = """
import json
import ray
from ray.cluster_utils import Cluster
from slime.cluster.placement import reserve, this_node
from slime.config.schema import ClusterConfig, SlimeConfig
from slime.topology.topology import read_topology

small = dict(num_cpus=1, object_store_memory=80 * 2**20)
ray_cluster = Cluster(initialize_head=True, head_node_args=small | dict(include_dashboard=False))
other = ray_cluster.add_node(**small, node_ip_address="127.0.0.2")
ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
cfg = SlimeConfig(cluster=ClusterConfig(name="it", ray_address=ray_cluster.address))
cfg.algo.name = "sft"
for name in ("127.0.0.2", next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == this_node())):
    cfg.cluster.exclude = [name]
    slots = reserve(read_topology(cfg), lambda event: None)
    print(json.dumps([slots.nodes == {this_node()}, slots.nodes == {other.node_id}]), flush=True)
    ray.util.remove_placement_group(slots.group)
ray.shutdown()
ray_cluster.shutdown()
"""


def test_ray_leaves_excluded_hosts_out() -> None:
    done = run_within(380, [sys.executable, "-c", EXCLUDING])
    assert done.stdout.splitlines()[-2:] == ["[true, false]", "[false, true]"]
