"""`model.batch_invariant` is refused where it does not hold; dense models and mixtures of experts are taken."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from slime.compose.compose import examine
from slime.config.schema import EngineGroupConfig, SlimeConfig
from slime.topology.engines import BATCH_INVARIANT
from slime.topology.topology import read_topology
from slime_sglang.rules.rules import sglang_problems

DENSE: dict[str, Any] = {"normalization": "RMSNorm", "activation_func": "silu", "num_attention_heads": 32}
DENSE |= {"num_query_groups": 2, "kv_channels": 128, "ffn_hidden_size": 13696}
MIXTURE = {**DENSE, "num_moe_experts": 64, "moe_router_dtype": "fp32", "moe_router_topk": 8, "mtp_num_layers": 1}
MIXTURE |= {"moe_ffn_hidden_size": 1408, "moe_router_load_balancing_type": "none"}
Change = Callable[[SlimeConfig], object]


@pytest.fixture(scope="module")
def base() -> SlimeConfig:
    words = ["+model=glm4-9b", "+cluster=h100x8", "recipe=none", "model.batch_invariant=true"]
    return examine([*words, "train.megatron={}", "rollout.sglang={}"]).cfg


def problems(base: SlimeConfig, model: dict[str, Any], change: Change = lambda cfg: None) -> list[str]:
    cfg = copy.deepcopy(base)
    change(cfg)
    return [str(problem) for problem in sglang_problems(read_topology(cfg), model)]


def fields(**sglang: Any) -> Change:
    return lambda cfg: cfg.rollout.sglang.update(sglang)


def test_dense_models_and_mixtures_of_experts_are_taken(base: SlimeConfig) -> None:
    assert problems(base, DENSE) == []
    assert problems(base, MIXTURE) == []
    told = read_topology(base).engines[0]
    assert told.environment[BATCH_INVARIANT] == "1"
    wanted = {"enable_deterministic_inference": True, "attention_backend": "triton", "dtype": "bfloat16"}
    wanted |= {"moe_runner_backend": "triton", "disable_shared_experts_fusion": True}
    assert wanted.items() <= told.fields.items()


def test_without_the_key_nothing_is_asked(base: SlimeConfig) -> None:
    def off(cfg: SlimeConfig) -> None:
        cfg.model.batch_invariant = False
        cfg.rollout.sglang["attention_backend"] = "fa3"

    assert problems(base, {**DENSE, "multi_latent_attention": True}, off) == []


@pytest.mark.parametrize(
    ("has", "says"),
    [
        ({"multi_latent_attention": True}, "latent attention"),
        ({"dsa_indexer_topk": 2048}, "sparse attention"),
        ({**MIXTURE, "moe_router_num_groups": 4}, "experts that are chosen by groups"),
        ({**MIXTURE, "moe_shared_expert_gate": True}, "shared experts with a gate"),
        ({**MIXTURE, "moe_router_dtype": "fp64"}, "fp64, but for fp32 alone"),
        ({**MIXTURE, "multi_latent_attention": True}, "latent attention"),
        ({"window_size": (127, 0)}, "attention to a window"),
        ({"layernorm_zero_centered_gamma": True}, "norms around 1"),
        ({"normalization": "LayerNorm"}, "LayerNorm, but for RMSNorm alone"),
        ({"activation_func": "gelu"}, "gelu, but for silu alone"),
    ],
)
def test_models(base: SlimeConfig, has: dict[str, Any], says: str) -> None:
    found = problems(base, {**DENSE, **has})
    assert any(re.search(f"^model.batch_invariant: does not hold for {says}.*Set it to false", each) for each in found)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (fields(attention_backend="fa3"), "attention_backend: is fa3, and model.batch_invariant needs triton"),
        (fields(dtype="float32"), "dtype: is float32, and model.batch_invariant needs bfloat16"),
        (fields(kv_cache_dtype="fp8_e4m3"), "kv_cache_dtype: is fp8_e4m3, and model.batch_invariant needs auto"),
        (fields(quantization="fp8"), "quantization: is fp8"),
        (fields(speculative_algorithm="EAGLE"), "speculative_algorithm: is EAGLE, and model.batch_invariant needs"),
        (fields(moe_runner_backend="deep_gemm"), "moe_runner_backend: is deep_gemm, and model.batch_invariant needs"),
        (fields(disable_shared_experts_fusion=False), "disable_shared_experts_fusion: is False"),
        (fields(enable_deterministic_inference=False), "enable_deterministic_inference: is False"),
        (
            lambda cfg: cfg.rollout.engines.update(it=EngineGroupConfig(devices=8, devices_per_engine=2)),
            "devices_per_engine: makes 2 ranks, which sum in parts",
        ),
        (
            lambda cfg: cfg.train.megatron.update(tensor_model_parallel_size=2),
            "train.megatron.tensor_model_parallel_size: is 2, and parts of a sum have another order",
        ),
        (
            lambda cfg: cfg.train.megatron.update(context_parallel_size=2),
            "train.megatron.context_parallel_size: is 2, and parts of a sum have another order",
        ),
        (
            lambda cfg: cfg.train.megatron.update(expert_tensor_parallel_size=2),
            "train.megatron.expert_tensor_parallel_size: is 2, and parts of a sum have another order",
        ),
        (lambda cfg: setattr(cfg.rollout, "fp8", "block"), "rollout.fp8: has engines round weights"),
        (lambda cfg: setattr(cfg.model, "fp32_lm_head", True), "model.fp32_lm_head: is set, and model.batch_invariant"),
        (lambda cfg: setattr(cfg.rollout.sampling, "top_p", 0.9), "rollout.sampling.top_p: leaves tokens out"),
        (lambda cfg: setattr(cfg.rollout.sampling, "top_k", 20), "rollout.sampling.top_k: leaves tokens out"),
        (lambda cfg: setattr(cfg.train.lora, "rank", 8), "model.batch_invariant: does not hold for adapters"),
        (
            lambda cfg: setattr(cfg.rollout, "addresses", ["10.0.0.1:30000"]),
            "model.batch_invariant: is set, but nobody knows the operators of servers",
        ),
    ],
)
def test_fields_and_layouts(base: SlimeConfig, change: Change, says: str) -> None:
    found = problems(base, DENSE, change)
    assert any(says in each for each in found), found


def test_engines_have_no_copies_of_experts(base: SlimeConfig) -> None:
    found = problems(base, MIXTURE, fields(ep_num_redundant_experts=2))
    assert any("ep_num_redundant_experts: is 2, and model.batch_invariant needs 0" in each for each in found), found
