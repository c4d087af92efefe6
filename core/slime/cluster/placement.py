"""One placement group for the whole run: a bundle for every host of the topology, which its processes share."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError
from slime.events import Starting, Subscriber
from slime.topology.placement import HostDevices
from slime.topology.topology import Topology

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


HOST_LABEL = "slime-host"
"""Label of a Ray node: which host of the topology it is, or line of the hostfile, counted from 0."""
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
        nodes: Ray's ids of the hosts that they are on.
    """

    group: PlacementGroup
    trainers: tuple[Slot, ...]
    engines: tuple[tuple[Slot, ...], ...]
    nodes: frozenset[str]

    def options(self, slot: Slot) -> dict[str, Any]:
        """Ray actor options that put an actor into its slot."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {
            "num_cpus": slot.num_cpus,
            "num_gpus": slot.num_gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=slot.bundle
            ),
        }


def this_node() -> str:
    """Ray's id of the host that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


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
    """What the run reserves on each of its hosts."""
    trainers, engines = slots(topology)
    wanted: dict[int, dict[str, float]] = {}
    for slot in [*trainers, *chain(*engines)]:
        bundle = wanted.setdefault(slot.bundle, {"CPU": 0.0, "GPU": 0.0})
        bundle["CPU"] += slot.num_cpus
        bundle["GPU"] += slot.num_gpus
    return [{name: count for name, count in wanted[host].items() if count} for host in sorted(wanted)]


def reserve(topology: Topology, tell: Subscriber) -> Slots:
    """Reserve every device of the run at once, as soon as others leave them free.

    Each host of the topology gets a Ray node of its own, and its processes go there: no engine and no tensor-parallel
    group is cut because some device of a node is taken. On cpu a host may stand for several. Ray chooses which node is
    which host, unless nodes have the label `slime-host` with its number, and which of a node's devices is which.

    Args:
        tell: told what is waited for, from the first second.

    Raises:
        SlimeError: Ray has too few devices, taken ones included, or they are not free within `start_timeout_s`.
    """
    from ray.util.placement_group import placement_group, placement_group_table

    import ray

    wanted, apart = bundles(topology), topology.cluster.on_gpus
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if not suffices([node["Resources"] for node in nodes], wanted, apart=apart):
        raise _lacking(wanted, nodes, 0.0)
    labelled = all(HOST_LABEL in node["Labels"] for node in nodes)
    group = placement_group(
        wanted,
        strategy="STRICT_SPREAD" if apart else "SPREAD",
        bundle_label_selector=[{HOST_LABEL: str(host)} for host in hosts_of(topology)] if labelled else None,
    )
    limit_s, started = topology.cluster.start_timeout_s, time.monotonic()
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
    return Slots(group, tuple(trainers), tuple(engines), found)


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
