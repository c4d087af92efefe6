"""Rules between keys, one broken at a time on a run that is otherwise right."""

import copy
import math
from typing import Any

import pytest

from slime import plugins
from slime.compose.check import check
from slime.compose.compose import compose, examine
from slime.compose.derive import derive
from slime.config.keys import own_keys, value_of
from slime.config.schema import Device, EngineGroupConfig, Init, LrDecay, Placement, SlimeConfig

DRAFTING = {"rollout.sglang.speculative_algorithm": "NEXTN", "rollout.sglang.enable_deterministic_inference": False}
LAYOUT = "train.megatron.pipeline_model_parallel_layout"
BALANCED = {"train.megatron.moe_router_load_balancing_type": "aux_loss", "train.megatron.moe_aux_loss_coeff": 1e-3}
PARTS = {"train.megatron.recompute_granularity": "selective"}
SIZES = ["rollout.max_prompt_tokens=32", "rollout.sampling.max_response_tokens=16", "rollout.prompts_per_step=32"]
DENSE = ["+model=glm4-tiny", "+cluster=local", "rollout.samples_per_prompt=8", *SIZES]
MIXTURE = [
    "+model=glm4-moe-tiny",
    "+cluster=local",
    "reward=arithmetic",
    "run.num_steps=1",
    "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl",
    *SIZES,
]


@pytest.fixture(scope="module")
def composed() -> dict[str, SlimeConfig]:
    return {"dense": compose(DENSE), "mixture": compose(MIXTURE)}


def problems(cfg: SlimeConfig, changes: dict[str, Any]) -> list[str]:
    """What `check` says of a copy of `cfg` with some keys changed (foreign ones by dotted name too)."""
    changed = copy.deepcopy(cfg)
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        holder = value_of(changed, section)
        holder.__setitem__(name, value) if isinstance(holder, dict) else setattr(holder, name, value)
    derive(changed, plugins.load())
    return [str(problem) for problem in check(changed, plugins.load()).problems]


def ranks(count: int, **sizes: int) -> dict[str, Any]:
    """A cluster of `count` trainer slots, and parallel sizes by Megatron's names without `_model_parallel_size`."""
    keys = {"context": "context_parallel_size", "expert_tensor": "expert_tensor_parallel_size"}
    named = {keys.get(name, f"{name}_model_parallel_size"): size for name, size in sizes.items()}
    cluster = {"cluster.num_trainers": count, "cluster.devices_per_node": count}
    return cluster | {f"train.megatron.{name}": size for name, size in named.items()}


def test_recipe_and_plain_run_are_right(composed: dict[str, SlimeConfig]) -> None:
    assert [problems(cfg, {}) for cfg in composed.values()] == [[], []]


@pytest.mark.parametrize("key", [key.name for key in own_keys().values() if key.bound and ".sets." not in key.name])
def test_every_number_is_refused_outside_its_bounds(composed: dict[str, SlimeConfig], key: str) -> None:
    kind = int if "int" in own_keys()[key].type else float
    for value in (kind(-(10**7)), kind(10**23), *((math.nan, math.inf) if kind is float else ())):
        (problem,) = problems(composed["dense"], {key.replace("<name>", "default"): value})
        assert problem.startswith(f"{key.replace('<name>', 'default')}: must be ")


def test_every_numeric_key_is_bounded() -> None:
    numeric = {key.name: key.bound for key in own_keys().values() if {"int", "float"} & set(key.type.split())}
    assert len(numeric) > 60
    assert [name for name, bound in numeric.items() if bound is None] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rollout.sampling.top_p": 1.5}, "rollout.sampling.top_p: must be above 0 and at most 1, got 1.5"),
        ({"rollout.sampling.top_k": 0}, "top_k: must be -1 (all tokens) or at least 1 and at most"),
        (
            {"rollout.request_timeout_s": float("inf")},
            "request_timeout_s: must be at least 1 and at most 10,000,000, got inf",
        ),
        ({"algo.name": "grop"}, "algo.name: no algorithm 'grop'. Did you mean 'grpo'?"),
        ({"reward.name": "arithmetics"}, "reward.name: no reward named 'arithmetics' is installed. Did you mean"),
        ({"filter.name": "non"}, "no filter named 'non' is installed. Did you mean 'none'?"),
        ({"buffer.name": "lifo"}, "no buffer named 'lifo' is installed. Did you mean 'fifo'?"),
        ({"reward.options.wrong_valu": 1.0}, "reward.options.wrong_valu: reward 'arithmetic' has no such option"),
        ({"reward.options.wrong_value": "no"}, "reward.options.wrong_value: Value 'no'"),
        ({"filter.options.size": 1}, "filter.options.size: filter 'none' has no such option. Remove it"),
        ({"data.path": "nowhere.jsonl"}, "data.path: there is no 'nowhere.jsonl'"),
        (
            {"data.path": "openai/gsm8k"},
            "Hugging Face hub is 'hf://openai/gsm8k', or fetched by 'hf download --repo-type dataset openai/gs",
        ),
        (
            {"data.path": "pkg://slime_rewards.math/data"},
            "the folder holds several data sets: arithmetic-held",
        ),
        ({"eval.path": "/nowhere/x"}, "eval.path, folder /nowhere is missing: there is no '/nowhere/x'"),
        ({"data.prompt_key": "question", "eval.path": None}, "line 1: the row has no key 'question'"),
        ({"eval.path": "pkg://slime_rewards.math/data/arithmetic-sft.jsonl"}, "line 1: the row has no key 'prompt'"),
        ({"sft.path": "pkg://slime_rewards.math/data/arithmetic-train.jsonl"}, "line 1: the row has no key 'messages'"),
        ({"sft.path": None}, "supervised steps without demonstrations"),
        ({"run.num_steps": 0}, "run.num_steps: there is no step to run"),
        ({"rollout.samples_per_prompt": 1}, "compares at least 2 samples of a prompt"),
        ({"rollout.sampling.temperature": 0.0}, "greedy samples of one prompt are all the same"),
        ({"rollout.sampling.top_p": 0.9}, "top_p: is 0.9, but trainers must be told which tokens SGLang kept"),
        (
            {"rollout.sampling.top_k": 2000},
            "top_k: is 2000: engines tell trainers of at most 1024 tokens which they were. Set it to 256",
        ),
        ({"train.steps_per_rollout": 7}, "256 samples a rollout cannot be divided into 7 optimizer steps"),
        ({"train.max_tokens_per_micro_batch": 47}, "is 47, but a sequence may have 48 tokens"),
        (
            {"rollout.max_prompt_tokens": 500},
            "the model's context of 512 has room for 506. Lower them to 506",
        ),
        (
            {"eval.sampling.max_response_tokens": 500},
            "eval.sampling.max_response_tokens: prompt and response may have 532",
        ),
        (
            {"rollout.sglang.max_total_tokens": 53},
            "48 tokens, rollout.sglang.max_total_tokens of 53 has room for 47",
        ),
        ({"rollout.sglang.max_total_tokens": 54}, ""),
        ({"rollout.sglang.mem_fraction_static": 5}, "must be above 0 and at most 1, got 5"),
        ({"rollout.sglang.context_length": 0}, "must be at least 1 and at most 100,000,000, got 0"),
        ({"rollout.sglang.max_total_tokens": 79, "rollout.sglang.page_size": 16}, "of 79 has room for 32"),
        ({"rollout.sglang.max_total_tokens": 80, "rollout.sglang.page_size": 16}, ""),
        (
            {"rollout.sglang.context_length": 53},
            "48 tokens, rollout.sglang.context_length of 53 has room for 47",
        ),
        ({"train.optimizer.lr": -1e-3}, "train.optimizer.lr: must be above 0 and below 1, got -0.001"),
        (
            {"train.optimizer.lr": 1e-3, "train.optimizer.min_lr": 1e-2, "train.lr_decay": LrDecay.cosine},
            "min_lr: is 0.01, above train.optimizer.lr=0.001",
        ),
        (
            {"sft.num_steps": 5, "sft.lr_warmup_steps": 5},
            "sft.lr_warmup_steps: is 5, which leaves none of 5 steps for the decay. Lower it below 5.",
        ),
        (
            {"run.num_steps": 3, "train.lr_warmup_steps": 4, "train.lr_decay": LrDecay.linear},
            "train.lr_warmup_steps: is 4, which leaves none of 3 steps for the decay",
        ),
        (
            {"run.num_steps": 40, "train.lr_warmup_steps": 1000000},
            "is 1000000, which leaves none of 40 steps at the full learning rate. Lower it below 40.",
        ),
        ({"run.num_steps": 40, "train.lr_warmup_steps": 39}, ""),
        ({"eval.samples_per_prompt": 8}, "eval.samples_per_prompt: is 8, but at eval.sampling.temperature=0 all"),
        ({"eval.samples_per_prompt": 8, "eval.sampling.temperature": 0.5}, ""),
        ({"train.optimizer.min_lr": 1}, "min_lr: does nothing without train.lr_decay other than constant. Set that"),
        ({"train.optimizer.optimizer_cpu_offload": True}, "does nothing without cluster.device=cuda. Set that too"),
        ({"train.optimizer.overlap_cpu_optimizer_d2h_h2d": True}, "does nothing without train.optimizer.optimizer_cpu"),
        ({"train.optimizer.use_precision_aware_optimizer": True}, "does nothing without train.optimizer.optimizer_cpu"),
        ({"train.optimizer.optimizer_cpu_offload": False, "train.optimizer.overlap_cpu_optimizer_d2h_h2d": False}, ""),
        ({"train.ddp.bucket_size": 1000}, "does nothing without train.ddp.overlap_grad_reduce"),
        ({"train.ddp.bucket_size": 1000, "train.ddp.overlap_grad_reduce": True}, ""),
        (
            {"train.megatron.moe_z_loss_coeff": 1e-3},
            "moe_z_loss_coeff: does nothing without a model with experts. Remov",
        ),
        ({"train.megatron.dsa_indexer_loss_coeff": 0.1}, "does nothing without a model with sparse attention. Remove"),
        ({"train.megatron.sequence_parallel": True}, "nothing without train.megatron.tensor_model_parallel_size above"),
        ({"train.megatron.recompute_method": "block"}, "nothing without train.megatron.recompute_granularity=full"),
        ({"train.megatron.recompute_granularity": "full"}, ""),
        ({"train.megatron.num_layers_in_first_pipeline_stage": 4}, "without train.megatron.pipeline_model_parallel_si"),
        ({"train.megatron.fp32_residual_connection": True}, "is not supported: slime's layers do not compute it. Remo"),
        ({"train.megatron.moe_per_layer_logging": True}, "nothing in slime reads it"),
        ({"train.megatron.recompute_granularty": "full"}, "no such field. Did you mean 'recompute_granularity'?"),
        (
            {"train.megatron.mtp_num_layers": 1},
            "mtp_num_layers: is not yours to set. Remove it: it comes from config.json",
        ),
        (
            {"rollout.sglang.moe_runner_backend": "flashinfer_trtllm_routed"},
            "moe_runner_backend: reorders experts at start-up only",
        ),
        (
            {"rollout.sglang.speculative_draft_model_path": "."},
            "names another model, but publishing renews the trained",
        ),
        (
            {"train.mtp_loss_scale": 0.2},
            "mtp_loss_scale: needs a multi-token prediction layer, which this model does not",
        ),
        ({"train.mtp_loss_scale": 0.0}, "train.mtp_loss_scale: must be above 0 and at most 100, got 0"),
        (ranks(2, context=2) | {"train.megatron.cp_comm_type": "p2p"}, "is p2p, but this layout needs all_gather"),
        ({"buffer.options.max_groups": "many"}, "buffer.options.max_groups: Value 'many'"),
        ({"buffer.options.size": 1}, "buffer.options.size: buffer 'fifo' has no such option"),
        ({"model.family": "glm4_moe"}, "is 'glm4_moe', but config.json says model_type 'glm4'"),
        ({"model.family": "glm5"}, "no model named 'glm5' is installed. Choose one of: deepseek_v3"),
        (
            {"model.init": Init.checkpoint},
            "nor model.safetensors. Fetch the weights, or set model.init=random",
        ),
        ({"model.weights": "dist"}, "model.weights: contradicts model.init=random"),
        ({"model.init": Init.checkpoint, "model.weights": "."}, "there is no metadata.json of Megatron-core"),
        ({"model.init": Init.checkpoint, "model.weights": "no/folder"}, "there is no 'no/folder'"),
        ({"model.num_layers": 5}, "model.num_layers is 5, but the model has 4 layers"),
        ({"train.megatron.hidden_size": 256}, "train.megatron.hidden_size: is not yours to set"),
        ({"cluster.num_trainers": 2}, "the run needs 2 (one for each trainer rank)"),
        (
            {"rollout.engines": {"a": EngineGroupConfig(devices_per_engine=2)}},
            "rollout.engines.a.devices_per_engine: an engine needs 2 devices, which are 2 hosts. Use at most 1",
        ),
        (
            {"rollout.sampling.max_sequence_tokens": 32},
            "rollout.sampling.max_sequence_tokens: is 32, but a prompt alone may have 32",
        ),
        ({"rollout.engines": {"a": EngineGroupConfig(devices=0)}}, "rollout.engines.a.devices: must be at least 1"),
        (
            {"rollout.engines": {"a": EngineGroupConfig(sglang={"tp_sizee": 2})}},
            "rollout.engines.a.sglang.tp_sizee: ServerArgs has no such field. Did you mean 'tp_size'?",
        ),
        (ranks(1, tensor=2), "1 trainer rank cannot be divided by tp 2 x cp 1 x pp 1 = 2. Set it to 2, or"),
        (ranks(3, pipeline=2), "3 trainer ranks cannot be divided by tp 1 x cp 1 x pp 2 = 2. Set it to 4 or 2, or"),
        (ranks(1, tensor=0), "train.megatron.tensor_model_parallel_size: must be at least 1 and below 100000, got 0"),
        (
            ranks(4, tensor=4),
            "tensor_model_parallel_size: 2 key/value heads cannot be divided by 4. Choose a divisor of 2.",
        ),
        (ranks(3, pipeline=3), "4 layers cannot be divided into 3 equal pipeline parts"),
        (ranks(2, expert=2), "expert_model_parallel_size: is 2, but the model has no experts. Set it to 1."),
        (ranks(1, virtual_pipeline=2), "virtual_pipeline_model_parallel_size: needs more than one pipeline stage"),
        (ranks(2, tensor=2) | {"train.megatron.sequence_parallel": False}, "is False, but this layout needs True"),
        (ranks(4) | {"rollout.prompts_per_step": 1, "rollout.samples_per_prompt": 2}, "are fewer than the 4 that"),
        ({"train.share_prompts": True}, ""),
        (ranks(2, context=2) | {"train.share_prompts": True}, "share_prompts: context parallelism needs every"),
        (ranks(2, context=2) | {"train.max_tokens_per_micro_batch": 48, "rollout.max_prompt_tokens": 31}, ""),
        (
            ranks(2, context=2) | {"train.max_tokens_per_micro_batch": 49, "rollout.max_prompt_tokens": 33},
            "may have 49 tokens, 52 when padded to a multiple of 4. Set it to 52 or more",
        ),
    ],
)
def test_dense_run(composed: dict[str, SlimeConfig], changes: dict[str, Any], says: str) -> None:
    found = problems(composed["dense"], changes)
    assert len(found) == (1 if says else 0), found
    assert says in "".join(found)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (ranks(3, expert=3), "8 experts cannot be divided by 3. Choose a divisor of 8."),
        (ranks(2, expert=2), ""),
        (ranks(2, tensor=2, expert_tensor=1), "is 1, which needs an expert parallel size of at least 2, got 1"),
        (ranks(2, tensor=2, expert=2), ""),
        (ranks(8, tensor=4, expert=2), "2 key/value heads cannot be divided by 4"),  # experts follow: no problem
        ({"train.megatron.moe_token_dispatcher_type": "allgather"}, "is allgather, but this layout needs alltoall"),
        ({"train.megatron.moe_router_bias_update_rate": 0.001}, ""),
        ({"train.megatron.moe_router_dtype": "fp32"}, ""),  # as config.json has it
        ({"train.megatron.moe_router_dtype": "fp64"}, "moe_router_dtype: is not yours to set. Remove it: config.json"),
        ({"train.megatron.moe_aux_loss_coeff": 1e-3}, "without train.megatron.moe_router_load_balancing_type=aux_loss"),
        ({"train.megatron.moe_router_load_balancing_type": "aux_loss"}, "without train.megatron.moe_aux_loss_coeff"),
        (BALANCED, ""),
        ({"train.megatron.moe_flex_dispatcher_backend": "deepep"}, "without train.megatron.moe_token_dispatcher_type="),
        ({"train.megatron.moe_grouped_gemm": True}, "moe_grouped_gemm: does nothing without train.megatron.bf16"),
        ({"train.megatron.moe_grouped_gemm": True, "train.megatron.bf16": True}, ""),
        ({"train.megatron.moe_router_num_groups": 2}, "nothing in slime reads it. Remove it"),
        (PARTS | {"train.megatron.recompute_modules": ["moe", "shared_experts", "core_attn", "mlp"]}, ""),
        (PARTS | {"train.megatron.recompute_modules": ["mla_up_proj"]}, "names mla_up_proj, which this model does not"),
        (PARTS | {"train.megatron.recompute_modules": ["moe_act"]}, "mlp or moe or shared_experts, got moe_act"),
        ({"train.megatron.num_moe_experts": 4}, "train.megatron.num_moe_experts: is not yours to set"),
        (DRAFTING, "is NEXTN, and SGLang drafts on GPUs alone"),
        ({"train.share_prompts": True}, ""),
        (ranks(2, pipeline=2) | {LAYOUT: "Ett|ttmL"}, ""),
        (
            ranks(2, pipeline=2) | {LAYOUT: "Ett|ttL"},
            "layout: must have the prediction layer, 'm', in its last part if train.",
        ),
        (
            ranks(2, pipeline=2) | {LAYOUT: "Ett|ttmL", "train.mtp_loss_scale": None},
            "in its last part if train.mtp_loss",
        ),
    ],
)
def test_mixture_of_experts(composed: dict[str, SlimeConfig], changes: dict[str, Any], says: str) -> None:
    found = problems(composed["mixture"], changes)
    assert len(found) == (1 if says else 0), found
    assert says in "".join(found)


@pytest.mark.parametrize(
    ("placement", "engines", "fits"),
    [("disaggregated", 4, True), ("disaggregated", 5, False), ("colocated", 4, True), ("colocated", 5, False)],
)
def test_gpus_are_counted(composed: dict[str, SlimeConfig], placement: str, engines: int, fits: bool) -> None:
    changes = {
        "cluster.device": Device.cuda,
        "cluster.placement": Placement[placement],
        "cluster.num_trainers": 8,
        "cluster.num_nodes": 2,
        "cluster.devices_per_node": 8,
        "rollout.engines": {"default": EngineGroupConfig(devices=2 * engines, devices_per_engine=2)},
    }
    assert (problems(composed["dense"], changes) == []) is fits


def test_supervised_run_needs_no_reward_no_prompts_and_no_room_for_responses() -> None:
    cfg = compose([*DENSE, "algo=sft", "eval.path=null", "train.max_tokens_per_micro_batch=32"])
    assert (cfg.algo.name, cfg.reward.name) == ("sft", "arithmetic")
    no_room = {"rollout.max_prompt_tokens": 5000, "rollout.sampling.top_p": 0.5}
    assert problems(cfg, no_room) == []
    scored = problems(cfg, no_room | {"eval.path": cfg.data.path})
    assert scored[0].startswith("rollout.max_prompt_tokens, eval.sampling")
    assert problems(cfg, {"reward.name": "none"}) == []
    assert "nothing to do" in problems(cfg, {"sft.num_steps": 0})[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"train.optimizer.use_precision_aware_optimizer": True, "train.optimizer.optimizer_offload_fraction": 1.0},
            "",
        ),
        ({"train.optimizer.optimizer_offload_fraction": 0.5}, "optimizer_offload_fraction: must be 1.0, got 0.5"),
        ({"train.optimizer.use_precision_aware_optimizer": False}, "use_precision_aware_optimizer other than false"),
        ({"train.megatron.bf16": False}, "optimizer_cpu_offload: does nothing without train.megatron.bf16. Set that"),
    ],
)
def test_adam_on_the_cpu(composed: dict[str, SlimeConfig], changes: dict[str, Any], says: str) -> None:
    on_gpu = {"cluster.device": Device.cuda, "cluster.devices_per_node": 2, "train.megatron.bf16": True}
    found = problems(composed["dense"], on_gpu | {"train.optimizer.optimizer_cpu_offload": True} | changes)
    assert len(found) == (1 if says else 0), found
    assert says in "".join(found)


def test_training_of_a_checkpoint_keeps_something(composed: dict[str, SlimeConfig]) -> None:
    nothing = {"train.checkpoint.interval": None, "train.checkpoint.export_hf": False}
    assert problems(composed["dense"], nothing) == [], "a trial with random weights has nothing to lose"
    checkpoint = {"model.init": Init.checkpoint}
    says = "nothing that is learnt is kept: neither checkpoints nor an export. Set one of them"
    assert any(says in problem for problem in problems(composed["dense"], nothing | checkpoint))
    for kept in ({"train.checkpoint.interval": 0}, {"train.checkpoint.export_hf": True}):
        assert not any(says in problem for problem in problems(composed["dense"], nothing | checkpoint | kept))


def test_a_model_without_a_layer_to_draft_with() -> None:
    """On a cluster whose engines could draft."""
    words = ["+model=qwen2.5-0.5b", "+cluster=h100x1", "+rollout.sglang.speculative_algorithm=NEXTN"]
    found = [str(problem) for problem in examine(words).problems]
    said = "rollout.sglang.speculative_algorithm: needs a multi-token prediction layer, which this model does not have"
    assert any(each.startswith(said) for each in found), found
