"""Raylets that are killed, and whose places others take."""

from __future__ import annotations

import json
import sys

import pytest

from slime_testing.patience import run_within

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DRIVER = """
import json, sys, time
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group
from slime.cluster.host_places import HostPlaces
from slime.cluster.placement import HOST_LABEL, Slot, Slots

def join(number):
    return ray_cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, labels={HOST_LABEL: str(number)})

@ray.remote
class Actor:
    def number(self):
        here = ray.get_runtime_context().get_node_id()
        return next(int(node["Labels"][HOST_LABEL]) for node in ray.nodes() if node["NodeID"] == here)

def look():
    actors = [Actor.options(**slots.options(Slot(host, 1.0, 0.0))).remote() for host in (0, 1)]
    numbers = ray.get([actor.number.remote() for actor in actors], timeout=120)
    for actor in actors:
        ray.kill(actor)
    print(json.dumps([numbers, lacking, len(places.spares)]), flush=True)

def id_of(raylet):
    return raylet.node_id

head = dict(num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False, labels={HOST_LABEL: "0"})
ray_cluster = Cluster(initialize_head=True, head_node_args=head)
second, spare = join(1), join(2)
ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
group = placement_group([{"CPU": 1}] * 3, bundle_label_selector=[{HOST_LABEL: str(host)} for host in range(3)])
assert group.wait(120)
places = HostPlaces(group, 2)
slots = Slots(group, places, (), (), frozenset())
lacking = places.lacking()
look()
ray_cluster.remove_node(second, allow_graceful=False)
places.lost.add(id_of(second))  # long before Ray knows
lacking = places.lacking()
look()
ray_cluster.remove_node(spare, allow_graceful=False)
places.lost.add(id_of(spare))
print(json.dumps(places.lacking()), flush=True)
join(1)
while places.lacking():
    time.sleep(0.5)
lacking = 0
look()
ray.shutdown()
ray_cluster.shutdown()
"""


def test_a_spare_host_and_then_one_that_joins_takes_the_place_of_a_lost_one() -> None:
    done = run_within(380, [sys.executable, "-c", DRIVER])
    told = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "[0123456789"]
    assert told == [[[0, 1], 0, 1], [[0, 2], 0, 0], 1, [[0, 1], 0, 0]]
