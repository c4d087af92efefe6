"""Runs that tests marked `gpu` start, by name: each is composed on machines without a GPU too, so that none is found to
be refused where time costs most."""

from __future__ import annotations

from typing import Any, NamedTuple

from slime_cluster.ray.gpus import MIB, read_gpus
from tests.running import NO_CHECKPOINTS, SPREAD

HERE = {"cluster.device_memory_mb": int(min(gpu.total for gpu in gpus) // MIB)} if (gpus := read_gpus()) else {}
"""The configs are those of H200s; the plans count on what is here."""
SMALL: dict[str, Any] = {
    **HERE,
    "rollout.sglang.mem_fraction_static": 0.3,
    "+rollout.sglang.cuda_graph_max_bs_decode": 32,
}
UNTRAINED: dict[str, Any] = {
    "model.num_layers": 4,
    "sft.path": "null",
    "sft.num_steps": 0,
    "sft.lr_warmup_steps": 0,
    "run.num_steps": 2,
    "rollout.prompts_per_step": 16,
    "rollout.sampling.max_response_tokens": 256,
    "algo.entropy_coef": 0.01,  # an untrained model earns nothing; this moves it
    "train.checkpoint.export_hf": "false",
    "rollout.sglang.mem_fraction_static": 0.2,
    "rollout.sglang.enable_memory_saver": "true",
    **NO_CHECKPOINTS,
}
"""The first layers of a model at its real sizes, with random weights; trainers and engines take turns."""


DRAFTING: dict[str, Any] = {
    "sft.num_steps": 200,
    "sft.path": "pkg://slime_rewards.math/data/arithmetic-sft.jsonl",
    "sft.lr_warmup_steps": 20,
    "train.checkpoint.interval": 100,
    "+rollout.sglang.speculative_algorithm": "EAGLE",
    "+rollout.sglang.speculative_num_steps": 1,
    "+rollout.sglang.speculative_eagle_topk": 1,
    "+rollout.sglang.speculative_num_draft_tokens": 2,
}


PAIR: dict[str, Any] = {
    "+rollout.engines.prefill.role": "prefill",
    "+rollout.engines.prefill.devices": 1,
    "+rollout.engines.decode.role": "decode",
    "+rollout.sglang.disaggregation_transfer_backend": "mooncake_tcp",
}


FLASH: dict[str, Any] = {
    **UNTRAINED,
    "recipe": "none",
    "task": "arithmetic",
    "model.path": "pkg://slime_plugin_glm4/assets/GLM-4.7-Flash",
    "model.tokenizer": "pkg://slime_plugin_glm4/assets/glm4-moe-lite-tiny",
    "model.init": "random",
    "+train.megatron.expert_tensor_parallel_size": 1,
}


def spread(ranks: int) -> dict[str, Any]:
    """Attention by data and experts, over the ranks of one engine."""
    return SPREAD | {f"+rollout.sglang.{what}_size": ranks for what in ("tp", "dp", "ep")}


def flash(ranks: int) -> dict[str, Any]:
    """GLM-4.7-Flash, on as many ranks of the trainer as of the engine, which each have a second copy of an expert."""
    sizes = {"+train.megatron.expert_model_parallel_size": ranks, "+rollout.sglang.ep_num_redundant_experts": ranks}
    return FLASH | spread(ranks) | sizes


def _hosts(each: int) -> dict[str, Any]:
    """Two hosts of `each` GPUs, over which an engine goes."""
    engine = {"rollout.engines.default.devices_per_engine": 2 * each}
    return {"cluster.num_nodes": 2, "cluster.devices_per_node": each, **engine}


class GpuRun(NamedTuple):
    """`+model=... +cluster=h200x...`, with keys."""

    gpus: int
    model: str
    cluster: str
    settings: dict[str, Any]


PLAIN = {
    "one": GpuRun(1, "glm4-tiny", "h200x1", {}),
    "two": GpuRun(2, "glm4-tiny", "h200x2", {}),
    "split": GpuRun(2, "glm4-tiny", "h200x2-split", {}),
    "tp2": GpuRun(
        2,
        "glm4-tiny",
        "h200x2",
        {"+train.megatron.tensor_model_parallel_size": 2, "+rollout.sglang.tp_size": 2},
    ),
    "pp2": GpuRun(2, "glm4-tiny", "h200x2", {"+train.megatron.pipeline_model_parallel_size": 2}),
    "cp2": GpuRun(2, "glm4-tiny", "h200x2", {"+train.megatron.context_parallel_size": 2}),
    "four": GpuRun(4, "glm4-tiny", "h200x4", {"+train.megatron.tensor_model_parallel_size": 2}),
}
DRAFTS = {"drafts": GpuRun(1, "glm4-moe-tiny", "h200x1", DRAFTING)}
OVER_HOSTS = {
    "tiny": GpuRun(2, "glm4-tiny", "h200x2", _hosts(1)),
    "glm4-9b": GpuRun(4, "glm4-9b-trial", "h200x4", UNTRAINED | _hosts(2)),
}
SPREADS = {
    "grouped-query": GpuRun(2, "glm4-moe-tiny", "h200x2", spread(2)),
    "latent-real-heads": GpuRun(2, "glm4.7-flash", "h200x2", flash(2)),
    "latent-over-four": GpuRun(4, "glm4.7-flash", "h200x4", flash(4)),
}
PAIRS = {
    "tiny": GpuRun(2, "glm4-tiny", "h200x2", PAIR | {"+rollout.engines.decode.devices": 1}),
    "drafts": GpuRun(2, "glm4-moe-tiny", "h200x2", PAIR | {"+rollout.engines.decode.devices": 1} | DRAFTING),
    "glm4-9b": GpuRun(4, "glm4-9b-trial", "h200x4", PAIR | {"+rollout.engines.decode.devices": 3} | UNTRAINED),
}
KINDS = {"plain": PLAIN, "drafts": DRAFTS, "hosts": OVER_HOSTS, "spread": SPREADS, "pairs": PAIRS}
