"""One placement group for the whole run: a bundle for every process, or for every GPU that two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError
from slime.topology.placement import engine_places, shares_gpus

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


@dataclass(frozen=True)
class Slot:
    """One process's bundle of the placement group, and what it takes of it."""

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
    nodes: frozenset[str] = frozenset()

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


def bundles(cfg: SlimeConfig) -> list[dict[str, float]]:
    """Resources the run reserves: for every process, trainer ranks first; or for every shared GPU."""
    trainers, processes = cfg.cluster.num_trainers, [place for places in engine_places(cfg) for place in places]
    if cfg.cluster.device is Device.cpu:
        return [{"CPU": 1.0}] * (trainers + len(processes))
    if shares_gpus(cfg):
        return [{"CPU": 2.0, "GPU": 1.0}] * trainers
    engines = [{"CPU": 1.0, "GPU": float(len(place.devices))} for place in processes]
    return [{"CPU": 1.0, "GPU": 1.0}] * trainers + engines


def slots(cfg: SlimeConfig, group: PlacementGroup, order: Sequence[int]) -> Slots:
    """Who takes which of the bundles that `order` lists, those of one node contiguous.

    On a shared GPU Ray counts a half for each of the two. An engine's process over several of them is counted on its
    first; it learns of the others when it starts (`Cluster.start`).
    """
    num_trainers, places = cfg.cluster.num_trainers, engine_places(cfg)
    if shares_gpus(cfg):
        per_node = cfg.cluster.devices_per_node
        shared = [[Slot(order[at.node * per_node + at.devices[0]], 1, 0.5) for at in nodes] for nodes in places]
        return Slots(group, tuple(Slot(bundle, 1, 0.5) for bundle in order), tuple(map(tuple, shared)))
    all_of = [Slot(bundle, wanted["CPU"], wanted.get("GPU", 0)) for bundle, wanted in enumerate(bundles(cfg))]
    trainers = [all_of[bundle] for bundle in order if bundle < num_trainers]
    processes = iter([all_of[bundle] for bundle in order if bundle >= num_trainers])
    return Slots(group, tuple(trainers), tuple(tuple(next(processes) for _ in nodes) for nodes in places))


def reserve(cfg: SlimeConfig) -> Slots:
    """Reserve every device of the run at once, or say what the cluster lacks.

    Bundles are packed, so that trainer ranks fill nodes in rank order and tensor parallelism stays inside a node.
    """
    import ray
    from ray.util.placement_group import placement_group, placement_group_table

    wanted = bundles(cfg)
    group = placement_group(wanted, strategy="PACK")
    if not group.wait(timeout_seconds=cfg.cluster.start_timeout_s):
        need = {name: sum(bundle.get(name, 0) for bundle in wanted) for name in ("CPU", "GPU")}
        have = {name: ray.cluster_resources().get(name, 0) for name in ("CPU", "GPU")}
        raise SlimeError(
            f"the cluster has {have['CPU']:g} CPUs and {have['GPU']:g} GPUs, the run needs {need['CPU']:g} and "
            f"{need['GPU']:g} at once (waited {cfg.cluster.start_timeout_s:g} s)",
            where="placement",
            todo="Free devices, lower cluster.num_trainers or rollout.engines.*.devices, or add nodes.",
        )
    nodes = placement_group_table(group)["bundles_to_node_id"]
    found = slots(cfg, group, sorted(range(len(wanted)), key=lambda bundle: (nodes[bundle], bundle)))
    return replace(found, nodes=frozenset(nodes.values()))
