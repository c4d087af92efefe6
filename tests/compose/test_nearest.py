"""Ways out of wrong layouts: each that a message names is typed behind the same words, and the plan takes it."""

from __future__ import annotations

import re

import pytest

from slime.compose.compose import examine
from tests.compose.typing_ways import typed

CAUTION = "algo.name=grpo"
"""Where the plan speaks of a recipe that is its guide's, once nothing is wrong."""
GLM52 = ("+model=glm5.2", "+cluster=h100x256")


def test_a_cluster_that_is_too_small_is_told_its_size_before_its_engines_are() -> None:
    """The nearest sizes of engines on 7 hosts led to trainers that have no place there either."""
    [problem] = examine([*GLM52, "cluster.num_nodes=7"]).problems
    assert problem.what.startswith("the run needs 256")
    assert problem.todo.startswith("Set cluster.num_nodes=32, ")
    assert examine([*GLM52, "cluster.num_nodes=32"]).problems == []


R1 = ("+model=deepseek-r1", "+cluster=h100x128")
FLASH = ("+model=glm4.7-flash", "+cluster=h100x8")
NINE = ("+model=glm4-9b", "+cluster=h100x8")
TINY = ("+model=glm4-tiny", "+cluster=local")
M, OPTIMIZER = "train.megatron", "train.optimizer"
NO_OFFLOAD = [
    f"{OPTIMIZER}.{key}=false"
    for key in ("optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")
]
WRONG = [
    (GLM52, [f"{M}.expert_model_parallel_size=30"]),
    (GLM52, [f"{M}.tensor_model_parallel_size=3"]),
    (GLM52, [f"{M}.num_layers_in_first_pipeline_stage=12", f"{M}.num_layers_in_last_pipeline_stage=18"]),
    (GLM52, [f"{M}.num_layers_in_first_pipeline_stage=null", f"{M}.num_layers_in_last_pipeline_stage=null"]),
    (GLM52, ["rollout.engines.decode.devices=128"]),
    (GLM52, ["rollout.sglang.mem_fraction_static=0.99"]),
    (R1, [f"{M}.num_layers_in_last_pipeline_stage=null"]),
    (R1, ["rollout.sglang.mem_fraction_static=0.97"]),
    (FLASH, NO_OFFLOAD),
    (FLASH, ["rollout.sglang.mem_fraction_static=0.95"]),
    (FLASH, [f"{M}.pipeline_model_parallel_size=2", f"{M}.expert_model_parallel_size=4"]),
    (NINE, [f"{M}.tensor_model_parallel_size=3"]),
    (NINE, ["train.max_tokens_per_micro_batch=600000"]),
    (NINE, ["rollout.sglang.mem_fraction_static=0.115"]),
    (TINY, [f"{M}.tensor_model_parallel_size=2"]),
]


def told(words: list[str]) -> dict[str, str]:
    """Where -> what to do, of problems and warnings."""
    composed = examine(words)
    return {problem.where: problem.todo for problem in [*composed.problems, *composed.warnings]}


@pytest.mark.parametrize(("words", "wrong"), WRONG, ids=lambda words: " ".join(words))
def test_every_way_out_is_taken_by_the_plan(words: tuple[str, ...], wrong: list[str]) -> None:
    line = [*words, *wrong]
    before = told(line)
    assert before
    ways = {where: re.findall(r"(?:Set|or) ((?:[\w.]+=[\w.]+ ?)+)", todo) for where, todo in before.items()}
    assert any(ways.values()), before
    for where, clauses in ways.items():
        for clause in clauses:
            after = told(typed(line, [word.rstrip(".") for word in clause.split()]))
            assert where not in after, (clause, after)
            assert after.keys() <= before.keys() | {CAUTION}, (clause, after)


def test_stages_that_start_on_reusing_layers_are_one_sentence() -> None:
    ends = [f"{M}.num_layers_in_first_pipeline_stage=12", f"{M}.num_layers_in_last_pipeline_stage=18"]
    [problem] = examine([*GLM52, *ends]).problems
    assert "would start on layers 12, 20, 28, 36, 44, 52, 60 (counted from 0)" in problem.what
