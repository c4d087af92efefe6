"""What is planned beside what trainers report."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.memory.trainer import GIB, Phase

SIZES = [f"train.megatron.{name}_model_parallel_size={size}" for name, size in (("tensor", 1), ("pipeline", 2))]
TWO_STAGES = ["+cluster=h200x2", *SIZES]


def plan_of(*arguments: str) -> MemoryPlan:
    memory = examine(["+model=glm4-9b-trial", *TWO_STAGES, *arguments]).memory
    assert isinstance(memory, GpuMemory)
    return memory.plan


def test_the_fullest_stage_counts_and_all_ranks_of_its_host() -> None:
    plan = plan_of("train.optimizer.optimizer_cpu_offload=true")
    peaks = GpuMemory(plan).peaks()
    assert peaks.keys() == {"memory/train_planned_gib", "memory/train_host_planned_gib"}
    devices = [trainer.allocated(Phase.train) / GIB for trainer in plan.trainers]
    hosts = [trainer.on_host(2).total(Phase.train) / GIB for trainer in plan.trainers]
    assert peaks["memory/train_planned_gib"] == max(devices) > min(devices)
    assert peaks["memory/train_host_planned_gib"] == pytest.approx(max(hosts))


def test_logprobs_have_a_peak_where_a_pass_computes_them() -> None:
    assert "memory/logprobs_planned_gib" in GpuMemory(plan_of("algo.kl_coef=0.1")).peaks()
