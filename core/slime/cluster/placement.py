"""One placement group for the whole run: a bundle for every trainer rank and for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


@dataclass(frozen=True)
class Slots:
    """Which bundle of the placement group each process takes."""

    group: PlacementGroup
    trainers: tuple[int, ...]
    engines: tuple[int, ...]

    def options(self, bundle: int) -> dict[str, Any]:
        """Ray actor options that put an actor into `bundle` and give it all that the bundle holds."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = self.group.bundle_specs[bundle]
        return {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=bundle
            ),
        }


def bundles(cfg: SlimeConfig) -> list[dict[str, float]]:
    """Resources of every process of the run: trainer ranks first, then engines."""
    engine_devices = int(cfg.rollout.sglang.get("tp_size", 1))
    if cfg.cluster.device is Device.cpu:
        return [{"CPU": 1.0}] * (cfg.cluster.num_trainers + cfg.cluster.num_engines)
    trainers = [{"CPU": 1.0, "GPU": 1.0}] * cfg.cluster.num_trainers
    return trainers + [{"CPU": 1.0, "GPU": float(engine_devices)}] * cfg.cluster.num_engines


def reserve(cfg: SlimeConfig) -> Slots:
    """Reserve every device of the run at once, or say what the cluster lacks.

    Bundles are packed, so that trainer ranks fill nodes in rank order and tensor parallelism stays inside a node.
    """
    import ray
    from ray.util.placement_group import placement_group

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
    num_trainers = cfg.cluster.num_trainers
    return Slots(group, tuple(range(num_trainers)), tuple(range(num_trainers, len(wanted))))
