"""What the plan says of the memory that trainers report, by the names of their metrics."""

from __future__ import annotations

from slime.config.hf import read_hf_config
from slime.memory.memory_plan import MemoryPlan, plan_memory
from slime.memory.trainer import GIB, Phase
from slime.plugins import Plugins
from slime.topology.topology import Topology


def planned_peaks(topology: Topology, plugins: Plugins) -> dict[str, float]:
    """Of a run whose model is there; nothing on cpu, and where the model's sizes are not known."""
    model = topology.config.model
    hf = read_hf_config(model.path, model.num_layers)
    plan = plan_memory(topology, plugins.models.create(model.family), hf)
    return peaks_of(plan) if plan else {}


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
