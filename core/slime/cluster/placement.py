"""One placement group for the whole run: a bundle for every host of the topology, which its processes share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from slime.cluster.host_places import HostPlaces
from slime.config.schema import ClusterConfig
from slime.errors import SlimeError, did_you_mean
from slime.events import Starting, Subscriber
from slime.topology.launcher import launcher_of
from slime.topology.placement import HostDevices
from slime.topology.topology import Topology

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


HOST_LABEL = "slime-host"
"""Label of a Ray node: which host of the topology it is, or line of the hostfile, counted from 0."""
NODE_LABEL = "ray.io/node-id"
"""Label that Ray gives each node: its id."""
GROUP = "run"
"""Name of the placement group that outlives a driver."""
WAITING_S = 10.0
"""How often it is told what is waited for."""
POLL_S = 1
"""How long a Ctrl-C waits at most: Ray sees none while it looks for devices, and counts in whole seconds."""


@dataclass(frozen=True)
class Slot:
    """The bundle of the placement group that a process is in, and what it takes of it."""

    bundle: int
    num_cpus: float
    num_gpus: float


@dataclass(frozen=True)
class Slots:
    """Where each process of the run goes; an engine has one on each of its hosts.

    Attributes:
        nodes: Ray's ids of the hosts that they are on, and of spare ones.
        places: which hosts these are now.
    """

    group: PlacementGroup
    places: HostPlaces
    trainers: tuple[Slot, ...]
    engines: tuple[tuple[Slot, ...], ...]
    nodes: frozenset[str]

    def options(self, slot: Slot) -> dict[str, Any]:
        """Ray actor options that put an actor into its slot, where that is now."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": slot.num_cpus,
            "num_gpus": slot.num_gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=self.places.bundle(slot.bundle)
            ),
        }


def lasting(cluster: ClusterConfig, name: str) -> dict[str, Any]:
    """Ray's options of something that outlives a driver, where that may be."""
    return {"name": name, "lifetime": "detached"} if cluster.driver_grace_s else {}


def this_node() -> str:
    """Ray's id of the host that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def host_names(cluster: ClusterConfig) -> dict[str, str]:
    """What the launcher, or else Ray, calls each host, by Ray's id; in the launcher's order, others by their names."""
    import ray

    launcher = launcher_of(cluster)
    hosts = launcher.hosts(cluster) if launcher else []
    names = {}
    for node in ray.nodes():
        number = node["Labels"].get(HOST_LABEL)
        names[node["NodeID"]] = hosts[int(number)] if hosts and number else node["NodeManagerHostname"]
    places = {host: place for place, host in enumerate(hosts)}
    return dict(sorted(names.items(), key=lambda named: (places.get(named[1], len(places)), named[1])))


def on_node(node: str) -> dict[str, Any]:
    """Ray options that put a task or an actor on one host (Ray's id), where it reserves no CPU."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def hosts_of(topology: Topology) -> list[int]:
    """The hosts of the topology that a process is on; the i-th has bundle i."""
    return sorted({place.node for place in topology.places})


def slots(topology: Topology) -> tuple[list[Slot], list[tuple[Slot, ...]]]:
    """The slot of every trainer rank, and of every engine's processes, those of frozen ones last, by the hosts that the
    topology gives them.

    On a shared GPU Ray counts the trainer rank alone; the engine's process learns of its devices when it starts.
    """
    hosts = hosts_of(topology)

    def slot(place: HostDevices, num_gpus: int) -> Slot:
        return Slot(hosts.index(place.node), 1.0, float(num_gpus) if topology.cluster.on_gpus else 0.0)

    num_shared = len(topology.group_of_engine) if topology.shares_gpus else 0
    engines = [
        tuple(slot(place, len(place.devices) if index >= num_shared else 0) for place in places)
        for index, places in enumerate(topology.engine_places)
    ]
    return [slot(place, 1) for place in topology.trainer_places], engines


def bundles(topology: Topology) -> list[dict[str, float]]:
    """What the run reserves on each of its hosts; on a spare one, last, as much as on any."""
    trainers, engines = slots(topology)
    wanted: dict[int, dict[str, float]] = {}
    for slot in [*trainers, *chain(*engines)]:
        bundle = wanted.setdefault(slot.bundle, {"CPU": 0.0, "GPU": 0.0})
        bundle["CPU"] += slot.num_cpus
        bundle["GPU"] += slot.num_gpus
    most = {name: max(bundle[name] for bundle in wanted.values()) for name in ("CPU", "GPU")}
    found = [wanted[host] for host in sorted(wanted)] + [most] * topology.cluster.spares
    return [{name: count for name, count in bundle.items() if count} for bundle in found]


def reserve(topology: Topology, tell: Subscriber, *, is_left: bool = False) -> Slots:
    """Reserve every device of the run at once, as soon as others leave them free.

    Each host of the topology gets a Ray node of its own, and its processes go there: no engine and no tensor-parallel
    group is cut because some device of a node is taken. On cpu a host may stand for several. Ray chooses which node is
    which host, unless nodes have the label `slime-host` with its number, and which of a node's devices is which.

    Args:
        tell: told what is waited for, from the first second.
        is_left: another driver of the run has reserved them.

    Raises:
        SlimeError: Ray has too few devices, taken ones included, or they are not free within `start_timeout_s`; it has
            no host that `cluster.exclude` names.
    """
    from ray.util.placement_group import get_placement_group, placement_group, placement_group_table

    import ray

    wanted, apart, cluster = bundles(topology), topology.cluster.on_gpus, topology.cluster
    alive = [node for node in ray.nodes() if node["Alive"]]
    # A launcher has left the others out.
    excluded = excluded_nodes(cluster.exclude, alive) if cluster.ray_address else []
    nodes = [node for node in alive if node["NodeID"] not in excluded]
    if not suffices([node["Resources"] for node in nodes], wanted, apart=apart):
        raise _lacking(wanted, nodes, 0.0)
    numbers = [*hosts_of(topology), *range(cluster.num_nodes, cluster.num_hosts)]
    asked = [{HOST_LABEL: str(host)} for host in numbers] if all(HOST_LABEL in node["Labels"] for node in nodes) else []
    if excluded:
        asked = [{**each, NODE_LABEL: f"!in({','.join(excluded)})"} for each in asked or [{}] * len(wanted)]
    group = (
        get_placement_group(GROUP)
        if is_left
        else placement_group(
            wanted,
            strategy="STRICT_SPREAD" if apart else "SPREAD",
            bundle_label_selector=asked or None,
            **lasting(cluster, GROUP),
        )
    )
    limit_s, started = cluster.start_timeout_s, time.monotonic()
    told = started - WAITING_S
    while not group.wait(POLL_S):
        now = time.monotonic()
        if now >= told + WAITING_S:
            told = now
            free = f"free are {_amounts(ray.available_resources())} of {_amounts(ray.cluster_resources())}"
            waiting = f"waiting for {_hosts(wanted)}, free at once; {free}; gives up after {limit_s:g} s"
            tell(Starting(waiting))
        if now >= started + limit_s:
            raise _lacking(wanted, nodes, limit_s)
    trainers, engines = slots(topology)
    found = frozenset(placement_group_table(group)["bundles_to_node_id"].values())
    places = HostPlaces(group, len(wanted) - cluster.spares)
    return Slots(group, places, tuple(trainers), tuple(engines), found)


def excluded_nodes(names: Sequence[str], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ray's ids of the hosts with these names or addresses; raises SlimeError if one has no such host."""
    found = []
    for name in names:
        of_name = [node for node in nodes if name in (node["NodeManagerHostname"], node["NodeManagerAddress"])]
        if not of_name:
            known = [node["NodeManagerHostname"] for node in nodes]
            raise SlimeError(f"Ray has no host '{name}'", where="cluster.exclude", todo=did_you_mean(name, known))
        found += [str(node["NodeID"]) for node in of_name]
    return found


def suffices(nodes: Collection[Mapping[str, float]], wanted: Collection[Mapping[str, float]], *, apart: bool) -> bool:
    """False if the nodes could not hold the bundles even if nobody else used them; `apart`: each takes a node of its
    own."""

    def num_with(held: Collection[Mapping[str, float]], least: Mapping[str, float]) -> int:
        return sum(all(each.get(name, 0) >= count for name, count in least.items()) for each in held)

    if apart:
        return all(num_with(nodes, bundle) >= num_with(wanted, bundle) for bundle in wanted)
    total = sum((Counter(node) for node in nodes), Counter[str]())
    needed = sum((Counter(bundle) for bundle in wanted), Counter[str]())
    return all(num_with(nodes, bundle) for bundle in wanted) and num_with([total], needed) == 1


def _lacking(wanted: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, Any]], waited_s: float) -> SlimeError:
    have = _hosts([node["Resources"] for node in nodes])
    need, todo = _hosts(wanted), "lower cluster.num_trainers or rollout.engines.*.devices, or add nodes."
    if waited_s:
        what = f"the run needs {need}, free at once, and Ray has {have} in all (waited {waited_s:g} s)"
        return SlimeError(what, where="placement", todo=f"Free devices, {todo}")
    what = f"the run needs {need}, and Ray has {have} in all"
    return SlimeError(what, where="placement", todo=todo.capitalize())


def _amounts(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


def _hosts(resources: Sequence[Mapping[str, float]]) -> str:
    counts = Counter(map(_amounts, resources))
    return ", ".join(f"{count} host{'s' * (count > 1)} with {amounts}" for amounts, count in counts.items())
