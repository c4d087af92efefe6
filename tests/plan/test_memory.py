"""What `slime plan` says about memory, and what it refuses."""

from __future__ import annotations

import pytest

from slime.config.compose import examine
from slime.topology.engines import engine_groups
from slime.topology.memory import GIB
from tests.topology.test_memory import plan_of

NINE = ("+model=glm4-9b", "+cluster=h100x8")


def problems(*arguments: str) -> list[str]:
    return [str(problem) for problem in examine(arguments).problems]


@pytest.mark.parametrize(
    ("model", "cluster", "most"),
    [
        ("glm5.2", "h100x256", 70),
        ("deepseek-r1", "h100x128", 66),
        ("glm4.5-355b-a32b", "h100x64", 66),
        ("glm4.5-fp8", "h100x64", 68),
        ("glm4.7-flash", "h100x8", 66),
        ("glm4-9b", "h100x8", 66),
        ("glm4-9b", "h100x8-split", 74),
    ],
)
def test_the_proven_recipes_fit(model: str, cluster: str, most: float) -> None:
    plan = plan_of(f"+model={model}", f"+cluster={cluster}")
    assert plan.device_bytes is not None
    assert plan.host_bytes is not None
    fullest = max(place.table.total(place.table.peak) for place in plan.devices)
    assert 55 * GIB < fullest < most * GIB < plan.device_bytes
    assert all(place.table.total(place.table.peak) < plan.host_bytes for place in plan.hosts)


def test_training_that_does_not_fit_names_tokens_that_do() -> None:
    [problem] = problems(*NINE, "train.max_tokens_per_micro_batch=600000")
    assert "'train' needs" in problem
    tokens = int(problem.split("max_tokens_per_micro_batch=")[1].rstrip("."))
    assert problems(*NINE, f"train.max_tokens_per_micro_batch={tokens}") == []
    assert problems(*NINE, f"train.max_tokens_per_micro_batch={tokens + 4096}") != []


def test_a_fraction_that_does_not_fit_names_one_that_does() -> None:
    [problem] = problems(*NINE, "rollout.sglang.mem_fraction_static=0.97")
    assert "'generate' needs" in problem
    fraction = problem.split("mem_fraction_static=")[1].rstrip(".")
    assert problems(*NINE, f"rollout.sglang.mem_fraction_static={fraction}") == []


def test_an_engine_without_room_for_one_sequence() -> None:
    [problem] = problems(*NINE, "rollout.sglang.mem_fraction_static=0.115")
    assert problem.startswith("rollout.sglang.mem_fraction_static: leaves room for")


def test_a_host_that_is_too_small() -> None:
    [problem] = problems(*NINE, "cluster.host_memory_gb=200")
    assert "memory a host" in problem
    assert "'save' needs" in problem


def test_deltas_cost_a_version_of_host_memory_at_both_ends() -> None:
    """GLM-4-9B in bf16: at the publisher, and at each engine beside it."""
    words = ("+model=glm4-9b", "+cluster=h100x8-split", "weights.transport=disk")
    plan, full = plan_of(*words), plan_of(*words, "weights.full_every=1")
    engines = sum(group.num_engines for group in engine_groups(plan.cfg))
    (kept,) = set(plan.hosts[0].table.rows["versions for deltas"].values())
    assert kept == 18_800_558_080 * (1 + engines)
    assert "versions for deltas" not in full.hosts[0].table.rows


def test_unknown_sizes_are_not_compared() -> None:
    assert problems(*NINE, "cluster.device_memory_mb=null", "cluster.host_memory_gb=null") == []
