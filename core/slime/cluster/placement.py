"""One placement group for the whole run: a bundle for every process, or for every GPU that two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime.config.schema import Device, Placement, SlimeConfig
from slime.errors import SlimeError
from slime.plan.placement import engine_ranks
from slime.plan.rules import devices_per_engine, num_engines

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
    """Where each process of the run goes."""

    group: PlacementGroup
    trainers: tuple[Slot, ...]
    engines: tuple[Slot, ...]

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


def shares_gpus(cfg: SlimeConfig) -> bool:
    """Whether a GPU holds a trainer rank and an engine; on cpu and without engines there is nothing to share."""
    return cfg.cluster.device is Device.cuda and cfg.cluster.placement is Placement.colocated and num_engines(cfg) > 0


def bundles(cfg: SlimeConfig) -> list[dict[str, float]]:
    """Resources the run reserves: for every process, trainer ranks first; or for every shared GPU."""
    trainers, engines = cfg.cluster.num_trainers, num_engines(cfg)
    if cfg.cluster.device is Device.cpu:
        return [{"CPU": 1.0}] * (trainers + engines)
    if shares_gpus(cfg):
        return [{"CPU": 2.0, "GPU": 1.0}] * trainers
    return [{"CPU": 1.0, "GPU": 1.0}] * trainers + [{"CPU": 1.0, "GPU": float(devices_per_engine(cfg))}] * engines


def slots(cfg: SlimeConfig, group: PlacementGroup, order: Sequence[int]) -> Slots:
    """Who takes which of the bundles that `order` lists, those of a node behind one another.

    On a shared GPU Ray counts a half for each of the two. An engine over several of them is counted on its first;
    it learns of the others when it starts (`Cluster.start`).
    """
    num_trainers = cfg.cluster.num_trainers
    if shares_gpus(cfg):
        firsts = [order[ranks[0]] for ranks in engine_ranks(cfg)]
        return Slots(
            group, tuple(Slot(bundle, 1, 0.5) for bundle in order), tuple(Slot(bundle, 1, 0.5) for bundle in firsts)
        )
    all_of = [Slot(bundle, wanted["CPU"], wanted.get("GPU", 0)) for bundle, wanted in enumerate(bundles(cfg))]
    trainers = [all_of[bundle] for bundle in order if bundle < num_trainers]
    engines = [all_of[bundle] for bundle in order if bundle >= num_trainers]
    assert len(engines) == num_engines(cfg), "a bundle for every process"
    return Slots(group, tuple(trainers), tuple(engines))


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
            todo="Free devices, lower cluster.num_trainers or cluster.num_engines, or add nodes.",
        )
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return slots(cfg, group, sorted(range(len(wanted)), key=lambda bundle: (nodes[bundle], bundle)))
