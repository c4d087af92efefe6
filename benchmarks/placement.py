"""Where Ray puts the processes of the recipes, against their topology, on raylets of this machine with fake GPUs.

    python benchmarks/placement.py                    # 32 hosts x 8: each recipe of whole hosts, by its placement group
    python benchmarks/placement.py --hosts 4 --actors # 4 hosts x 8: two layouts with every actor of theirs
    python benchmarks/placement.py --hosts 4 --actors --devices 2 # the same on hosts of two: a quarter of the actors

A raylet takes about 0.1 GB, an actor 60 MB or more and a second of a core. One host more than the largest layout
needs is there, and another job has up to three devices of one, but not all.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from machine import conditions

from slime.cluster.group import open_cluster
from slime.cluster.placement import HOST_LABEL, Slots, reserve
from slime.cluster.ray_starter import ray_here
from slime.compose.compose import examine
from slime.compose.groups import scan
from slime.config.schema import ClusterConfig, Device, SlimeConfig
from slime.plugins import load
from slime.topology.placement import HostDevices
from slime.topology.topology import Topology, read_topology
from slime_cluster.ray.starter import make_token, ray_cluster
from slime_observers.console.startup import Startup

FOUR = ["+model=glm4-9b", "+cluster=h100x8", "cluster.num_nodes=4", "cluster.device_memory_mb=null"]
SIZES = [
    "cluster.host_memory_gb=null",
    *(f"train.megatron.{kind}_parallel_size=1" for kind in ("tensor_model", "context")),
]
Where = dict[str, tuple[HostDevices, str]]
"""Of every process: its place in the topology, and Ray's node."""


def layouts(per_host: int) -> dict[str, list[str]]:
    """Words of two layouts for four hosts, by what they are."""
    half = per_host // 2
    return {
        f"{4 * per_host} trainers, {2 * per_host} engines on their devices": [
            *(f"cluster.num_trainers={4 * per_host}", f"rollout.engines.default.devices={4 * per_host}"),
            "rollout.sglang.tp_size=2",
        ],
        f"{3 * half} trainers, engines of {per_host} and {half} devices": [
            *("cluster.placement=disaggregated", f"cluster.num_trainers={3 * half}"),
            *(f"rollout.engines.default.devices={half}", f"rollout.engines.default.devices_per_engine={half}"),
            *(
                f"+rollout.engines.large.devices={2 * per_host}",
                f"+rollout.engines.large.devices_per_engine={per_host}",
            ),
        ],
    }


@contextmanager
def raylets(num_hosts: int, per_host: int, *, labelled: bool = False) -> Iterator[str]:
    """Address of a Ray cluster of this machine's own; its workers start when an actor wants one.

    Args:
        per_host: devices of each.
        labelled: nodes say which host they are, the last one started that it is the first.
    """
    quiet = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    os.environ.update(quiet | {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"})
    make_token()
    from ray.cluster_utils import Cluster

    sizes: dict[str, Any] = {"object_store_memory": 80 * 2**20, "num_cpus": 2 * per_host, "num_gpus": per_host}
    labels = [{"labels": {HOST_LABEL: str(host)}} if labelled else {} for host in reversed(range(num_hosts))]
    cluster = Cluster(initialize_head=True, head_node_args=sizes | {"include_dashboard": False} | labels[0])
    try:
        for label in labels[1:]:
            cluster.add_node(wait=False, **sizes, **label)
        cluster.wait_for_nodes(timeout=300)
        yield cluster.address
    finally:
        cluster.shutdown()


def occupy(address: str, num_devices: int, label: Mapping[str, str] | None) -> None:
    """Another job's devices, all of one host; of the one with the label, if there is one."""
    with ray_cluster(ClusterConfig(name="other", ray_address=address), 0):
        from ray.util.placement_group import placement_group

        where = [label] if label else None
        assert placement_group([{"GPU": float(num_devices)}], lifetime="detached", bundle_label_selector=where).wait(60)


def places(topology: Topology) -> dict[str, HostDevices]:
    """Of every process, in the order of trainer ranks and then of engines."""
    trainers = {f"trainer {rank}": place for rank, place in enumerate(topology.trainer_places)}
    return trainers | {
        f"engine {index} process {rank}": place
        for index, nodes in enumerate(topology.engine_places)
        for rank, place in enumerate(nodes)
    }


def by_table(topology: Topology, reserved: Slots) -> Where:
    """By Ray's own table of the placement group."""
    from ray.util.placement_group import placement_group_table

    nodes = placement_group_table(reserved.group)["bundles_to_node_id"]
    slots = [*reserved.trainers, *chain(*reserved.engines)]
    placed = places(topology).items()
    return {name: (place, nodes[slot.bundle]) for (name, place), slot in zip(placed, slots, strict=True)}


def differences(where: Where) -> list[str]:
    """Processes that are not with those that the topology puts on the same host, or are with others; and hosts that are
    not the nodes which are labelled so."""
    import ray

    node_of: dict[int, str] = {}
    found = [
        f"{name} is not on the node of host {place.node}"
        for name, (place, node) in where.items()
        if node_of.setdefault(place.node, node) != node
    ]
    twice = len(node_of) - len({*node_of.values()})
    labels = {node["NodeID"]: node["Labels"].get(HOST_LABEL, "") for node in ray.nodes()}
    for number, node in node_of.items():
        if labels[node] not in ("", str(number)):
            found.append(f"host {number} is {labels[node]}")
    return [*found, *([f"{twice} hosts share a node with another"] if twice else [])]


def with_actors(topology: Topology) -> list[str]:
    """Every actor of the run, as it says itself where it is and which device it got."""
    with (
        tempfile.TemporaryDirectory() as logs,
        ray_here(topology) as here,
        open_cluster(topology, here, Path(logs)) as cluster,
    ):
        cluster.calls.check_in(topology.cluster.start_timeout_s)
        members = [*cluster.calls.trainers, *cluster.calls.engines]
        placed = places(topology).items()
        where = {name: (place, member.node) for (name, place), member in zip(placed, members, strict=True)}
        found, devices = differences(where), cluster.trainers.devices()
        on = {rank: (member.node, device) for rank, (member, device) in enumerate(zip(members, devices, strict=False))}
        if len({*on.values()}) < topology.cluster.num_trainers:
            found.append("two trainers have one device")
        for index, ranks in enumerate(topology.engine_ranks if topology.shares_gpus else []):
            if {on[rank][0] for rank in ranks} != {where[f"engine {index} process 0"][1]}:
                found.append(f"engine {index} is not on the node of its trainers")
        return found


def recipes(num_hosts: int, per_host: int) -> Iterator[tuple[str, SlimeConfig]]:
    """Those on whole hosts."""
    for recipe in scan(load()).names("recipe"):
        model, _, cluster = recipe.partition("@")
        if cluster.startswith("h100x"):
            cfg = examine([f"+model={model}", f"+cluster={cluster}"]).cfg
            if cfg.cluster.devices_per_node == per_host and cfg.cluster.num_nodes <= num_hosts:
                yield recipe, cfg


def composed(words: Sequence[str], per_host: int, address: str) -> SlimeConfig:
    hosts = [f"cluster.devices_per_node={per_host}", f"cluster.ray_address={address}"]
    examined = examine([*FOUR, *SIZES, *words, *hosts])
    assert examined.problems == [], examined.problems
    assert examined.cfg.cluster.device is Device.cuda
    return examined.cfg


def memory_gib() -> float:
    """Private memory of this process and its children."""
    me, total = psutil.Process(), 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return total / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--devices", type=int, default=8, help="of each host")
    parser.add_argument("--actors", action="store_true", help="two layouts for 4 hosts, with all their actors")
    parser.add_argument("--labelled", action="store_true", help="raylets that say which host they are")
    options = parser.parse_args()
    start, wrong = time.perf_counter(), 0
    print(f"{conditions()}\n", flush=True)
    with ExitStack() as stack:
        address = stack.enter_context(raylets(options.hosts + 1, options.devices, labelled=options.labelled))
        if options.actors:
            words_of = layouts(options.devices)
            cases = [(name, composed(words, options.devices, address)) for name, words in words_of.items()]
        else:
            cases = [*recipes(options.hosts, options.devices)]
        for _, cfg in cases:
            cfg.cluster.ray_address = address
        label = {HOST_LABEL: str(options.hosts)} if options.labelled else None
        occupy(address, min(3, options.devices - 1), label)
        print(f"{options.hosts + 1} raylets after {time.perf_counter() - start:.0f} s, {memory_gib():.1f} GiB\n")
        print("| layout | hosts | processes | s | differences |\n|---|---|---|---|---|", flush=True)
        for name, cfg in cases:
            begin, topology = time.perf_counter(), read_topology(cfg)
            found = (with_actors if options.actors else without_actors)(topology)
            wrong += len(found)
            row = [name, len({place.node for place in topology.places}), len(topology.places)]
            seconds = time.perf_counter() - begin
            print(f"| {' | '.join(map(str, row))} | {seconds:.1f} | {'; '.join(found[:3]) or 'none'} |", flush=True)
        print(f"\n{memory_gib():.1f} GiB, {time.perf_counter() - start:.0f} s in all")
    raise SystemExit(wrong)


def without_actors(topology: Topology) -> list[str]:
    """The placement group alone."""
    with ray_cluster(topology.cluster, 0):
        return differences(by_table(topology, reserve(topology, Startup())))


if __name__ == "__main__":
    main()
