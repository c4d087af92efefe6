"""Ways out of wrong engines, batches and settings: each is typed behind the same words, and the plan takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from slime.compose.compose import examine
from tests.compose.typing_ways import typed

GLM52 = ("+model=glm5.2", "+cluster=h100x256")
R1 = ("+model=deepseek-r1", "+cluster=h100x128")
FLASH = ("+model=glm4.7-flash", "+cluster=h100x8")
NINE = ("+model=glm4-9b", "+cluster=h100x8")
TINY = ("+model=glm4-tiny", "+cluster=local")
SGLANG, GROUP, EAGLE = "rollout.sglang", "rollout.engines", "rollout.sglang.speculative_algorithm=EAGLE"
MEMORY = {"memory a device", f"{SGLANG}.mem_fraction_static", "train.max_tokens_per_micro_batch"}
"""Where the plan says that memory is short."""
CAUTION = {"algo.name=grpo"}
"""What the plan says of a recipe that is its guide's, once nothing is wrong."""
BOUNDED = {f"{section}.sampling.max_response_tokens" for section in ("rollout", "eval")}
"""What is longer than a sequence may be, once that is made shorter."""
WRONG = [
    (GLM52, [f"{SGLANG}.dp_size=63"]),
    (GLM52, [f"{GROUP}.decode.sglang.dp_size=63"]),
    (GLM52, [f"{GROUP}.decode.devices_per_engine=63"]),
    (GLM52, [f"{GROUP}.decode.devices_per_engine=60", f"{GROUP}.decode.devices=60"]),
    (GLM52, [f"{GROUP}.prefill.devices=100"]),
    (GLM52, [f"{SGLANG}.ep_size=4"]),
    (GLM52, [f"{SGLANG}.ep_num_redundant_experts=3"]),
    (GLM52, [f"{SGLANG}.moe_dense_tp_size=3"]),
    (GLM52, [f"{SGLANG}.page_size=32"]),
    (GLM52, [f"{SGLANG}.kv_cache_dtype=fp4_e2m1"]),
    (GLM52, [f"{SGLANG}.moe_runner_backend=triton"]),
    (GLM52, [f"{SGLANG}.moe_a2a_backend=mooncake"]),
    (GLM52, [f"{SGLANG}.moe_a2a_backend=none"]),
    (GLM52, ["rollout.fp8=null"]),
    (GLM52, [f"{SGLANG}.pp_size=2"]),
    (GLM52, ["cluster.ib_devices=[]"]),
    (GLM52, [f"{SGLANG}.disaggregation_transfer_backend=nixl"]),
    (GLM52, ["cluster.ib_devices=[]", f"{SGLANG}.disaggregation_transfer_backend=nixl"]),
    (GLM52, [f"{GROUP}.decode.sglang.kv_cache_dtype=bfloat16"]),
    (GLM52, [f"{SGLANG}.speculative_num_draft_tokens=9"]),
    (GLM52, [f"{SGLANG}.speculative_algorithm=NGRAM"]),
    (GLM52, [f"{SGLANG}.enable_mixed_chunk=true"]),
    (GLM52, ["cluster.num_trainers=128"]),
    (GLM52, ["cluster.num_trainers=250"]),
    (GLM52, ["train.max_tokens_per_micro_batch=1000"]),
    (GLM52, ["train.max_tokens_per_micro_batch=60001"]),
    (GLM52, ["weights.transport=broadcast"]),
    (GLM52, ["weights.num_sources=4"]),
    (R1, [f"{SGLANG}.dp_size=12"]),
    (R1, [f"{SGLANG}.moe_dense_tp_size=null"]),
    (R1, [f"{SGLANG}.cuda_graph_max_bs_decode=7"]),
    (R1, [f"{GROUP}.default.devices_per_engine=12"]),
    (R1, [f"{GROUP}.default.devices_per_engine=24"]),
    (R1, [f"{SGLANG}.enable_dp_attention=false", f"{SGLANG}.dp_size=1"]),
    (R1, ["train.steps_per_rollout=7"]),
    (NINE, ["train.steps_per_rollout=256"]),
    (FLASH, [f"{SGLANG}.enable_dp_attention=true", f"{SGLANG}.dp_size=3"]),
    (FLASH, [f"{SGLANG}.ep_size=3"]),
    (FLASH, [f"{SGLANG}.moe_a2a_backend=deepep"]),
    (FLASH, [f"{SGLANG}.deepep_mode=low_latency"]),
    (FLASH, [f"{GROUP}.default.devices=4"]),
    (FLASH, [f"{GROUP}.default.devices_per_engine=16"]),
    (FLASH, ["rollout.fp8=block"]),
    (FLASH, [EAGLE, f"{SGLANG}.speculative_num_steps=3"]),
    (FLASH, ["cluster.num_trainers=7"]),
    (FLASH, ["cluster.num_nodes=2"]),
    (NINE, ["rollout.fp8=block"]),
    (NINE, [f"{SGLANG}.ep_size=2"]),
    (NINE, ["train.steps_per_rollout=3"]),
    (NINE, ["train.steps_per_rollout=10000"]),
    (NINE, ["train.max_tokens_per_micro_batch=100"]),
    (NINE, ["rollout.sampling.max_response_tokens=20000"]),
    (NINE, ["rollout.sampling.top_p=0.9"]),
    (NINE, ["rollout.sampling.top_k=2000"]),
    (NINE, ["rollout.sampling.top_k=20", f"{SGLANG}.speculative_algorithm=EAGLE"]),
    (NINE, ["eval.sampling.temperature=0", "eval.samples_per_prompt=4"]),
    (NINE, ["algo.kl_coef=0.1", "algo.kl_estimator=k1"]),
    (NINE, ["rollout.samples_per_prompt=1"]),
    (NINE, ["run.num_steps=0"]),
    (NINE, ["cluster.num_trainers=9"]),
    (NINE, ["model.family=qwen3"]),
    (NINE, ["weights.path=/x"]),
    (NINE, ["algo.clip_high=0.5"]),
    (NINE, ["train.lr_decay_steps=100"]),
    (NINE, ["rollout.surplus=drop"]),
    (TINY, ["cluster.num_trainers=1", f"{SGLANG}.tp_size=3"]),
    (TINY, [f"{GROUP}.default.devices=3", f"{GROUP}.default.devices_per_engine=2"]),
    (TINY, [f"{SGLANG}.moe_a2a_backend=deepep"]),
    (TINY, ["weights.num_sources=2"]),
    (TINY, ["train.steps_per_rollout=5"]),
]


def told(words: list[str]) -> list[tuple[str, str]]:
    """Where and what to do, of problems and warnings."""
    composed = examine(words)
    return [(problem.where, problem.todo) for problem in [*composed.problems, *composed.warnings]]


def ways(where: str, todo: str) -> Iterator[list[str]]:
    """The words that a way out names; of a list of values the first and the last."""
    home = where.rpartition(".")[0]
    for clause in re.findall(r"(?:Set|Use|Choose|Write|or(?: set)?) ((?:[\w.]+=[\w.]+ ?)+)", todo):
        words = [word.rstrip(".") for word in clause.split()]
        yield [word if "." in word.partition("=")[0] else f"{home}.{word}" for word in words]
    values = re.findall(
        r"^(?:Set it to|Choose(?: one of)?|Use|Raise it to) ([-\w., ]+?)(?: \(| and narrow|, which| instead|\.$|, or )",
        todo,
    )
    listed = re.split(r", | or ", values[0]) if values else []
    listed = [value for value in listed if re.fullmatch(r"-?[\w]+", value) and value not in ("more", "or")]
    yield from ([f"{where}={value}"] for value in dict.fromkeys([*listed[:1], *listed[-1:]]))
    for key, numbers in re.findall(r"or ([\w.]+\.\w+) to (?:one of )?([\d, ]+)", todo):
        first, *others = numbers.strip(" ,").split(", ")
        yield from ([f"{key}={value}"] for value in (first, *others[-1:]))


@pytest.mark.parametrize(("words", "wrong"), WRONG, ids=lambda words: " ".join(words))
def test_every_way_out_is_taken_by_the_plan(words: tuple[str, ...], wrong: list[str]) -> None:
    line = [*words, *wrong]
    before = told(line)
    places = {where for where, _ in before}
    assert before
    assert len(places) == len(before), "one sentence a cause"
    found = [(where, way) for where, todo in before for way in ways(where, todo)]
    for where, way in found:
        after = dict(told(typed(line, way)))
        assert where not in after, (way, after)
        assert after.keys() <= places | MEMORY | BOUNDED | CAUTION, (way, after)
    for where, todo in before:
        if re.search(r"(Remove|Leave) it|remove (it|this)", todo) and any(
            word.startswith(f"{where}=") for word in wrong
        ):
            after = dict(told([word for word in line if not word.startswith(f"{where}=")]))
            assert where not in after, (todo, after)
            assert after.keys() <= places | MEMORY | BOUNDED | CAUTION, (todo, after)
            found.append((where, []))
    assert found, before
