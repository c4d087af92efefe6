"""One placement group for the whole run: a bundle for every host of the topology, which its processes share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError
from slime.topology.placement import Place, engine_places, shares_gpus, trainer_places

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


HOST_LABEL = "slime-host"
"""Label of a Ray node: which host of the topology it is, or line of the hostfile, counted from 0."""


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


def hosts_of(cfg: SlimeConfig) -> list[int]:
    """The hosts of the topology that a process is on; the i-th has bundle i."""
    return sorted({place.node for place in [*trainer_places(cfg), *chain(*engine_places(cfg))]})


def slots(cfg: SlimeConfig) -> tuple[list[Slot], list[tuple[Slot, ...]]]:
    """The slot of every trainer rank, and of every engine's processes, by the hosts that the topology gives them.

    On a shared GPU Ray counts the trainer rank alone; the engine's process learns of its devices when it starts.
    """
    on_cpu, shared = cfg.cluster.device is Device.cpu, shares_gpus(cfg)
    trainers, engines = trainer_places(cfg), engine_places(cfg)
    hosts = hosts_of(cfg)

    def slot(place: Place, num_gpus: int) -> Slot:
        return Slot(hosts.index(place.node), 1.0, 0.0 if on_cpu else float(num_gpus))

    return (
        [slot(place, 1) for place in trainers],
        [tuple(slot(place, 0 if shared else len(place.devices)) for place in places) for places in engines],
    )


def bundles(cfg: SlimeConfig) -> list[dict[str, float]]:
    """What the run reserves on each of its hosts."""
    trainers, engines = slots(cfg)
    wanted: dict[int, dict[str, float]] = {}
    for slot in [*trainers, *chain(*engines)]:
        bundle = wanted.setdefault(slot.bundle, {"CPU": 0.0, "GPU": 0.0})
        bundle["CPU"] += slot.num_cpus
        bundle["GPU"] += slot.num_gpus
    return [{name: count for name, count in wanted[host].items() if count} for host in sorted(wanted)]


def reserve(cfg: SlimeConfig) -> Slots:
    """Reserve every device of the run at once, or say what the cluster lacks.

    Each host of the topology gets a Ray node of its own, and its processes go there: no engine and no tensor-parallel
    group is cut because some device of a node is taken. On cpu a host may stand for several. Ray chooses which node is
    which host, unless nodes have the label `slime-host` with its number, and which of a node's devices is which.
    """
    import ray
    from ray.util.placement_group import placement_group, placement_group_table

    wanted = bundles(cfg)
    labelled = all(HOST_LABEL in node["Labels"] for node in ray.nodes() if node["Alive"])
    group = placement_group(
        wanted,
        strategy="SPREAD" if cfg.cluster.device is Device.cpu else "STRICT_SPREAD",
        bundle_label_selector=[{HOST_LABEL: str(host)} for host in hosts_of(cfg)] if labelled else None,
    )
    if not group.wait(timeout_seconds=cfg.cluster.start_timeout_s):
        raise _lacking(cfg, wanted)
    trainers, engines = slots(cfg)
    nodes = frozenset(placement_group_table(group)["bundles_to_node_id"].values())
    return Slots(group, tuple(trainers), tuple(engines), nodes)


def _lacking(cfg: SlimeConfig, wanted: Sequence[Mapping[str, float]]) -> SlimeError:
    import ray

    need = Counter(_amounts(bundle) for bundle in wanted)
    have = Counter(_amounts(node["Resources"]) for node in ray.nodes() if node["Alive"])
    return SlimeError(
        f"the run needs {_hosts(need)}, free at once, and Ray has {_hosts(have)} in all "
        f"(waited {cfg.cluster.start_timeout_s:g} s)",
        where="placement",
        todo="Free devices, lower cluster.num_trainers or rollout.engines.*.devices, or add nodes.",
    )


def _amounts(resources: Mapping[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"


def _hosts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} host{'s' * (count > 1)} with {amounts}" for amounts, count in counts.items())
