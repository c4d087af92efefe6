"""What `slime plan` refuses because it does not fit, what it calls tight, and the ways out that it names."""

from __future__ import annotations

import re

import pytest

from slime.compose.compose import examine

NINE = ("+model=glm4-9b", "+cluster=h100x8")
FLASH = ("+model=glm4.7-flash", "+cluster=h100x8")
FRACTION = "rollout.sglang.mem_fraction_static"


def problems(*arguments: str) -> list[str]:
    return [str(problem) for problem in examine(arguments).problems]


def warnings(*arguments: str) -> list[str]:
    composed = examine(arguments)
    assert composed.problems == []
    return [str(warning) for warning in composed.warnings if warning.where != "algo.name=grpo"]


def test_training_that_does_not_fit_names_tokens_that_do() -> None:
    [problem] = problems(*NINE, "train.max_tokens_per_micro_batch=600000")
    assert "'train' needs" in problem
    tokens = int(problem.split("max_tokens_per_micro_batch=")[1].rstrip("."))
    assert warnings(*NINE, f"train.max_tokens_per_micro_batch={tokens}") == []
    assert "is tight" in warnings(*NINE, f"train.max_tokens_per_micro_batch={tokens + 4096}")[0]


def test_a_fraction_that_does_not_fit_names_one_that_does() -> None:
    [problem] = problems(*NINE, "rollout.sglang.mem_fraction_static=0.97")
    assert "'generate' needs" in problem
    fraction = problem.split("mem_fraction_static=")[1].rstrip(".")
    assert warnings(*NINE, f"rollout.sglang.mem_fraction_static={fraction}") == []
    assert warnings(*NINE, f"rollout.sglang.mem_fraction_static={float(fraction) + 0.02:g}") != []


def test_less_than_the_error_of_predictions_is_tight() -> None:
    [warning] = warnings(*FLASH, "rollout.sglang.mem_fraction_static=0.95")
    assert re.match(r"memory a device: 'generate' needs 79\.\d GiB of 79\.6", warning)
    assert "tight: predictions are off by up to 7.5%" in warning


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("+model=glm4-9b", "+cluster=h100x8-split", "weights.bucket_mb=3072"), "weights.bucket_mb=2048"),
        (("+model=glm4.5", "+cluster=h100x64", f"{FRACTION}=0.85"), "rollout.sglang.max_running_requests=544"),
    ],
)
def test_what_only_engines_need_has_a_way_out(words: tuple[str, ...], way_out: str) -> None:
    """Buckets that come where no trainer is; and the requests that SGLang would have rows for, which nobody sends."""
    [warning] = warnings(*words)
    assert warning.endswith(f"Set {way_out}.")
    assert warnings(*words[:2], *words[2:] * ("bucket" not in words[2]), way_out) == []


@pytest.mark.parametrize("recipe", ["glm5.1", "glm5"])
def test_a_shipped_recipe_that_is_tight_says_so(recipe: str) -> None:
    [warning] = warnings(f"+model={recipe}", "+cluster=h100x256")
    assert re.match(r"memory a device: 'publish' needs 7[78]\.\d GiB of 79\.6", warning)


def test_without_room_the_way_out_may_be_several_keys() -> None:
    switches = ("optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")
    [problem] = problems(*FLASH, *(f"train.optimizer.{key}=false" for key in switches))
    assert problem.endswith(
        "Set train.optimizer.optimizer_cpu_offload=true train.optimizer.use_precision_aware_optimizer=true."
    )


def test_an_engine_without_room_for_one_sequence() -> None:
    [problem] = problems(*NINE, "rollout.sglang.mem_fraction_static=0.115")
    assert problem.startswith("rollout.sglang.mem_fraction_static: leaves room for")
    fraction = problem.split("mem_fraction_static=")[1].rstrip(".")
    assert problems(*NINE, f"rollout.sglang.mem_fraction_static={fraction}") == []


def test_a_host_that_is_too_small() -> None:
    [problem] = problems(*NINE, "cluster.host_memory_gb=200")
    assert "memory a host" in problem
    assert "'generate' needs" in problem
    [problem] = problems(*NINE, "cluster.host_memory_gb=200", "train.checkpoint.async_save=false")
    assert "'save' needs" in problem
    assert "Use more hosts" in problem


def test_of_a_cluster_that_is_much_too_small_devices_are_told_and_hosts_are_not() -> None:
    engines, device = problems("+model=glm5.2", "+cluster=h100x8")
    assert engines.startswith("rollout.sglang.mem_fraction_static: leaves room for 0 tokens")
    assert device.startswith("memory a device: 'train' needs ")


def test_a_host_too_small_for_kept_versions_is_told_the_key_that_keeps_none() -> None:
    words = ("+model=glm4-9b", "+cluster=h100x8-split", "weights.transport=disk")
    [problem] = problems(*words, "cluster.host_memory_gb=200")
    assert "Set weights.full_every=1, or use more hosts" in problem
    assert problems(*words, "cluster.host_memory_gb=200", "weights.full_every=1") == []
    [problem] = problems(*words, "cluster.host_memory_gb=150")
    assert "weights.full_every=1 lowers it, which is not enough: beside that, use more hosts" in problem
    [problem] = problems(*words, "cluster.host_memory_gb=150", "weights.full_every=1")
    assert "full_every" not in problem


def test_a_host_too_small_for_copies_is_told_the_key_that_makes_none() -> None:
    words = ("+model=glm4-9b", "+cluster=h100x8", "cluster.host_memory_gb=400")
    assert problems(*words) == []
    [problem] = problems(*words, "train.checkpoint.in_memory_every=1")
    assert "copies in memory most of it. Set train.checkpoint.in_memory_every=0, or use more hosts" in problem


def test_unknown_sizes_are_not_compared() -> None:
    assert problems(*NINE, "cluster.device_memory_mb=null", "cluster.host_memory_gb=null") == []
