"""What the plan says of LoRA: memory, what fits, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from slime.compose.compose import examine
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import MARGIN, MemoryPlan, most

RANK = "train.lora.rank=32"
RECOMPUTED = (
    "train.megatron.recompute_granularity=full",
    "train.megatron.recompute_method=uniform",
    "train.megatron.recompute_num_layers=1",
)
SIXTEEN_H200 = (
    "+model=glm4.5-355b-a32b",
    "+cluster=h200x8",
    "cluster.name=h200x16",
    "cluster.num_nodes=2",
    "cluster.num_trainers=16",
    "train.megatron.tensor_model_parallel_size=4",
    "train.megatron.pipeline_model_parallel_size=2",
    "train.megatron.expert_model_parallel_size=8",
    "rollout.engines.default.devices_per_engine=16",
    "train.max_tokens_per_micro_batch=20480",
)
SIXTY_FOUR_H100 = (
    "+model=glm5.2",
    "+cluster=h100x64",
    "train.megatron.tensor_model_parallel_size=2",
    "train.megatron.pipeline_model_parallel_size=4",
    "train.megatron.expert_model_parallel_size=16",
    "train.megatron.num_layers_in_first_pipeline_stage=22",
    "train.megatron.num_layers_in_last_pipeline_stage=16",
    "rollout.engines.default.devices_per_engine=64",
)
ONE_H200 = ("+model=glm4.7-flash", "+cluster=h200x1")


def planned(*words: str) -> MemoryPlan:
    composed = examine(words)
    assert composed.problems == []
    assert isinstance(composed.memory, GpuMemory)
    return composed.memory.plan


@pytest.mark.parametrize("words", [SIXTEEN_H200, SIXTY_FOUR_H100, ONE_H200])
def test_what_does_not_fit_whole_fits_with_lora(words: Sequence[str]) -> None:
    problems = [problem.where for problem in examine([*words, *RECOMPUTED]).problems]
    assert "memory a device" in problems or "memory a host" in problems
    plan = planned(*words, *RECOMPUTED, RANK)
    assert plan.device_bytes
    assert max(map(most, plan.devices)) < (1 - MARGIN) * plan.device_bytes


def test_the_base_has_neither_gradient_nor_optimizer_state() -> None:
    plan = planned("+model=glm4-9b", "+cluster=h200x1", "recipe=none", RANK, "algo.kl_coef=0.01")
    [rank] = plan.trainers
    model = sum(weight.numel for weight in plan.weights)
    # Rank 32, by hand: queries, keys, values; what attention gives; gate and up (one matrix of the checkpoint); down.
    layer = 32 * ((4096 + 4096) + 2 * (4096 + 256) + (4096 + 4096) + (4096 + 27392) + (13696 + 4096))
    learning = 40 * layer
    assert sum(weight.numel for weight in plan.adapters) == learning
    assert rank.weights == 2 * (model + learning)
    assert rank.gradients == 4 * learning
    assert rank.optimizer == 12 * learning
    assert rank.saved == 16 * learning  # with the reference
    host = plan.hosts[0].table.rows
    assert max(host["reference"].values()) == 4 * learning


def test_ranks_share_adapters_as_they_share_layers() -> None:
    """Tensor parallelism cuts B of layers that divide their output, and A of those that divide their input."""
    words = ("+model=glm4-9b", "+cluster=h200x2", RANK)
    [one] = planned(*words, "train.megatron.tensor_model_parallel_size=1", *RECOMPUTED).trainers
    [two] = planned(*words, "train.megatron.tensor_model_parallel_size=2").trainers
    whole = 40 * 32 * (3 * 4096 + 4096 + 4096 + 4096)
    assert two.held.learning == whole + (one.held.learning - whole) // 2


@pytest.mark.parametrize("words", [SIXTEEN_H200, SIXTY_FOUR_H100])
def test_routed_experts_have_adapters_of_their_own_rank(words: Sequence[str]) -> None:
    """Rank 32 over the eight experts of a token: it fits too. By hand, of the model's own widths."""
    without, plan = (planned(*words, *RECOMPUTED, RANK, *more) for more in ((), ("train.lora.expert_rank=4",)))
    assert plan.device_bytes
    assert max(map(most, plan.devices)) < (1 - MARGIN) * plan.device_bytes
    of_experts = [weight for weight in plan.weights if ".local_experts." in weight.name and not weight.drafts]
    assert {weight.name.split(".")[-2] for weight in of_experts} == {"linear_fc1", "linear_fc2"}
    layers = {weight.layer for weight in of_experts}
    inner, hidden = next(weight.shape for weight in of_experts if ".linear_fc1." in weight.name)
    each = 4 * 3 * (hidden + inner // 2)
    count = {weight.count for weight in of_experts}.pop() * len(layers) * each
    assert sum(x.numel for x in plan.adapters) - sum(x.numel for x in without.adapters) == count
    shares = zip(plan.trainers, without.trainers, strict=True)
    grid = plan.trainers[0].grid
    assert sum(one.held.experts - other.held.experts for one, other in shares) == count // grid.ep


def refusal(*words: str) -> list[str]:
    return [str(problem) for problem in examine(["+model=glm4-9b", "+cluster=h200x1", *words]).problems]


def test_what_does_not_fit_together_is_refused() -> None:
    alone = "the other keys of train.lora do nothing without train.lora.rank"
    assert any(alone in line for line in refusal("train.lora.alpha=16"))
    [line] = refusal(RANK, "train.lora.targets=[q_prj]")
    assert "'q_prj' is no linear layer of this model that can have an adapter. Did you mean 'q_proj'?" in line
    [line] = refusal("train.lora.rank=0")
    assert "train.lora.rank: must be at least 1" in line
    [line] = refusal(RANK, "model.init=random")
    assert "checkpoints hold the adapters alone" in line
    # A model's own layer of a loss, and a layer that experts alone have.
    drafting: list[Any] = list(examine([*ONE_H200, RANK, *RECOMPUTED, "train.mtp_loss_scale=0.2"]).problems)
    assert any("train.mtp_loss_scale lets" in str(problem) for problem in drafting)
    experts = [*ONE_H200, RANK, *RECOMPUTED, "train.megatron.moe_router_bias_update_rate=0.001"]
    assert any("moves routers" in str(problem) for problem in examine(experts).problems)
    only = examine(["+model=qwen3-30b-a3b", "+cluster=h100x8", RANK, "train.lora.targets=[gate_proj]"]).problems
    assert any("'gate_proj' is a layer of routed experts alone, which have no adapters" in str(x) for x in only)


def test_experts_that_cannot_have_adapters_are_refused() -> None:
    ranks = (RANK, "train.lora.expert_rank=4")

    def of_experts(*words: str) -> str:
        [line, *_] = [str(x) for x in examine(["+model=qwen3-30b-a3b", "+cluster=h100x8", *ranks, *words]).problems]
        return line

    assert examine(["+model=qwen3-30b-a3b", "+cluster=h100x8", *ranks]).problems == []
    assert "train.lora.expert_rank does nothing: the model has no routed experts" in refusal(*ranks)[0]
    assert "train.lora.targets names no layer of experts" in of_experts("train.lora.targets=[q_proj]")
    halves = "train.lora.expert_rank takes gate_proj and up_proj together"
    assert halves in of_experts("train.lora.targets=[gate_proj,down_proj]")
    assert "was not seen to work with adapters of routed experts" in of_experts("train.lora.publish=adapters")
    assert "was not built for" in of_experts("train.megatron.moe_token_dispatcher_type=flex")
    sizes = ("tensor_model_parallel_size=2", "expert_model_parallel_size=1", "expert_tensor_parallel_size=2")
    cut = of_experts(*(f"train.megatron.{size}" for size in sizes))
    assert "adapts whole experts, and 2 ranks share each" in cut
    assert "set expert_model_parallel_size in train.megatron to 2 or more" in cut


LAPTOP = ("+model=glm4-tiny", "+cluster=local", "train.checkpoint.interval=null")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((RANK, "sft.num_steps=0"), {"train.optimizer.lr"}),
        ((RANK,), {"sft.lr", "train.optimizer.lr"}),
        ((RANK, "sft.lr=1e-2"), {"train.optimizer.lr"}),
        ((RANK, "sft.lr=1e-2", "train.optimizer.lr=1e-3"), set()),
        ((RANK, "algo=sft", "eval.path=null"), {"sft.lr"}),
        (("train.optimizer.lr=1e-3",), set()),
        ((), set()),
    ],
    ids=[
        "no supervised steps",
        "both stages",
        "one is set",
        "both are set",
        "supervised alone",
        "no adapters",
        "nothing",
    ],
)
def test_a_rate_for_whole_models_is_told(words: tuple[str, ...], told: set[str]) -> None:
    composed = examine([*LAPTOP, *words])
    assert not composed.problems
    found = {warning.where: warning for warning in composed.warnings if "adapters take about ten times" in warning.what}
    assert found.keys() == told
    for key, warning in found.items():
        assert warning.todo.startswith(f"Set {key}=")
