"""What the plan says of the memory that trainers report, by the names of their metrics."""

from __future__ import annotations

from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.memory.trainer import GIB, Phase


def peaks_of(plan: MemoryPlan) -> dict[str, float]:
    """GiB on the fullest device and host: `memory/train_planned_gib` stands beside `memory/train_gib`."""
    ranks_a_host = min(plan.cfg.cluster.devices_per_node, plan.cfg.cluster.num_trainers)
    hosts = [rank.on_host(ranks_a_host) for rank in plan.trainers]
    peaks = {}
    for phase in (Phase.logprobs, Phase.train):
        if phase in plan.trainers[0].training:
            peaks[f"memory/{phase.value}_planned_gib"] = max(rank.allocated(phase) for rank in plan.trainers) / GIB
            peaks[f"memory/{phase.value}_host_planned_gib"] = max(host.total(phase) for host in hosts) / GIB
    return peaks
