"""What SGLang would refuse or change without a word is refused, with a setting that works."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

import slime_megatron.sparse_attention as dsa
from slime.compose.compose import examine
from slime.config.hf import config_folder
from slime.config.paths import resolve
from slime.config.schema import EngineGroupConfig, Role, SlimeConfig
from slime.topology.environment import engine_environment
from slime.topology.server_fields import dispatch_tokens
from slime.topology.topology import read_topology
from slime_megatron.fp8_block.config import Fp8Format
from slime_megatron.transformer import gqa, mlp
from slime_sglang.rules.rules import sglang_problems

from .real_server_args import server_args

MOE = {
    "num_attention_heads": 64,
    "num_moe_experts": 64,
    "moe_layer_freq": [0, 1],
    "moe_ffn_hidden_size": 1536,
    "moe_shared_expert_intermediate_size": 2048,
    "ffn_hidden_size": 18432,
    "kv_channels": 128,
    "num_query_groups": 8,
}
SPARSE = {**MOE, "dsa_indexer_topk": 2048}
DENSE = {"num_attention_heads": 32, "ffn_hidden_size": 13696}
GROUPED = {"num_attention_heads": 8, "num_query_groups": 2, "kv_channels": 64, "ffn_hidden_size": 1024}
LATENT = {
    **GROUPED,
    "multi_latent_attention": True,
    "q_lora_rank": 1536,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
ATTENTION = {"enable_dp_attention": True}
DEEPEP = {"moe_a2a_backend": "deepep"}
EAGLE = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 2, "speculative_eagle_topk": 1}


@pytest.fixture(scope="module")
def base() -> SlimeConfig:
    return examine(["+model=glm4-9b", "+cluster=h100x64", "recipe=none", "rollout.max_requests_per_engine=128"]).cfg


def problems(
    base: SlimeConfig,
    fields: dict[str, Any],
    model: dict[str, Any],
    *,
    fp8: str | None = None,
    role: Role = Role.regular,
) -> list[str]:
    cfg = copy.deepcopy(base)
    cfg.rollout.fp8 = fp8
    devices = fields.get("tp_size", 1) * fields.get("pp_size", 1)
    cfg.rollout.engines = {"it": EngineGroupConfig(role=role, devices=devices, sglang=fields)}
    blocks = [gqa.BLOCK, dsa.BLOCK if "dsa_indexer_topk" in model else mlp.BLOCK]
    return [str(problem) for problem in sglang_problems(read_topology(cfg), model, blocks)]


@pytest.mark.parametrize(
    ("fields", "model", "says"),
    [
        ({"pp_size": 2}, DENSE, "pp_size: is 2, but weights are published to tensor-parallel ranks only"),
        ({"tp_size": 8, "dp_size": 2}, DENSE, "dp_size: is 2 without enable_dp_attention"),
        ({"tp_size": 8, **ATTENTION}, DENSE, "enable_dp_attention: needs dp_size above 1.*divisor of 8"),
        ({"tp_size": 8, "dp_size": 3, **ATTENTION}, DENSE, "dp_size: is 3, which does not.*one of 2, 4, 8"),
        ({"tp_size": 8, "enable_dp_lm_head": True}, DENSE, "enable_dp_lm_head: needs enable_dp_attention"),
        ({"tp_size": 64}, DENSE, "32 attention heads cannot be divided by 64 ranks. Change it, or use enable_dp"),
        ({"tp_size": 24, "dp_size": 3, **ATTENTION}, {**MOE, "num_attention_heads": 20}, "20.*8 ranks.*6, 12, 24"),
        ({"tp_size": 8, "moe_dense_tp_size": 2}, MOE, "moe_dense_tp_size: is 2. Set it to 1"),
        ({"tp_size": 8, "ep_size": 8}, DENSE, "ep_size: is 8, but the model has no experts"),
        ({"tp_size": 8, "ep_size": 3}, MOE, "ep_size: is 3, which does not divide tp_size 8. Choose one of 1, 2, 4, 8"),
        (
            {"tp_size": 24, "ep_size": 24, "dp_size": 24, "ep_num_redundant_experts": 16, **ATTENTION},
            MOE,
            "64 . 16 redundant experts make 80, which 24 ranks do not divide. Set it to 8 .72 experts. or 32",
        ),
        ({"tp_size": 8, "enable_eplb": True}, MOE, "enable_eplb: moves experts to other ranks while the engine serves"),
        ({"tp_size": 8, "init_expert_location": "map.json"}, MOE, "init_expert_location: does not reach the router"),
        ({"tp_size": 8, "ep_dispatch_algorithm": "fake"}, MOE, "ep_dispatch_algorithm: is fake, which draws experts"),
        ({"tp_size": 8, "deepep_mode": "auto"}, MOE, "deepep_mode: does nothing without moe_a2a_backend=deepep"),
        ({"tp_size": 8, "moe_a2a_backend": "mooncake"}, MOE, "moe_a2a_backend: is mooncake, which was never tried"),
        ({"tp_size": 128, "dp_size": 128, **ATTENTION}, MOE, "makes 128 ranks, more than the 64 experts"),
        ({"page_size": 16}, SPARSE, "page_size: is 16, but this model's attention has pages of 64"),
        ({"kv_cache_dtype": "fp8_e5m2"}, SPARSE, "is fp8_e5m2, which this model's attention does not take"),
        ({"enable_fp32_lm_head": True}, DENSE, "enable_fp32_lm_head: is of engines alone.*Set model.fp32_lm_head=true"),
        (
            {**EAGLE, "max_running_requests": 8, "speculative_num_draft_tokens": 5},
            DENSE,
            "speculative_num_draft_tokens: is 5, but with speculative_eagle_topk=1 SGLang makes it 3",
        ),
        (
            {**EAGLE, "max_running_requests": 8, "enable_deterministic_inference": True},
            DENSE,
            "enable_deterministic_inference: draws with no seed",
        ),
    ],
)
def test_fields(base: SlimeConfig, fields: dict[str, Any], model: dict[str, Any], says: str) -> None:
    found = problems(base, fields, model)
    assert any(re.search(says, problem) for problem in found), found


@pytest.mark.parametrize(
    ("of_run", "of_engine", "fits"), [(True, True, True), (True, False, False), (False, False, True)]
)
def test_logits_in_fp32_are_of_both_sides(base: SlimeConfig, of_run: bool, of_engine: bool, fits: bool) -> None:
    cfg = copy.deepcopy(base)
    cfg.model.fp32_lm_head = of_run
    assert not problems(cfg, {}, DENSE), "engines follow the key"
    found = problems(cfg, {"enable_fp32_lm_head": of_engine}, DENSE)
    assert found == [] if fits else "Set model.fp32_lm_head=false, and remove this" in found[0]


@pytest.mark.parametrize(
    ("fields", "fp8", "says"),
    [
        (
            {"tp_size": 16, "ep_size": 8, **DEEPEP},
            "block",
            "ep_size: is 8, but moe_a2a_backend=deepep makes it tp_size=16",
        ),
        ({"tp_size": 16, "ep_size": 1, **DEEPEP}, "block", "ep_size: is 1, but moe_a2a_backend=deepep makes it"),
        (
            {"tp_size": 16, "deepep_mode": "normal", **DEEPEP},
            "block",
            "deepep_mode: is normal: SGLang drops every CUDA",
        ),
        ({"tp_size": 16, "deepep_mode": "low_latency", **DEEPEP}, "block", "deepep_mode: is low_latency, which cannot"),
        ({"tp_size": 16, **DEEPEP}, None, "takes experts in bf16 only in mode low_latency"),
        ({"tp_size": 16, "moe_runner_backend": "triton", **DEEPEP}, "block", "moe_runner_backend: is triton, but FP8"),
        ({"tp_size": 1, **DEEPEP}, "block", "deepep has no settings for 1 ranks"),
        (
            {"tp_size": 16, "max_running_requests": 32768, **DEEPEP},
            "block",
            "may bring 2048 tokens a rank, deepep takes 1024",
        ),
        ({"tp_size": 32}, "block", "ep_size: experts of 1536 columns over 32 ranks have no whole FP8 blocks"),
        ({"tp_size": 32, "ep_size": 32}, "block", "the shared expert of 2048 columns over 32 ranks"),
        ({"tp_size": 64, **DEEPEP}, "block", "dense layers of 18432 columns over 64 ranks.*Set it to 1"),
    ],
)
def test_wide_experts(base: SlimeConfig, fields: dict[str, Any], fp8: str | None, says: str) -> None:
    found = problems(base, fields, MOE, fp8=fp8)
    assert any(re.search(says, problem) for problem in found), found


def test_room_for_dispatched_tokens_that_the_user_cuts_down(base: SlimeConfig) -> None:
    cfg = copy.deepcopy(base)
    cfg.rollout.fp8 = "block"
    cfg.cluster.environment = {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": 4}
    cfg.rollout.engines = {"it": EngineGroupConfig(devices=16, sglang={"tp_size": 16, **DEEPEP})}
    [problem] = sglang_problems(read_topology(cfg), MOE)
    assert "is 4, but a decode batch may bring 8 tokens a rank" in str(problem)
    cfg.cluster.environment = {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": 128}
    assert list(sglang_problems(read_topology(cfg), MOE)) == []


@pytest.mark.parametrize(
    ("fields", "model", "says"),
    [
        ({}, GROUPED, None),
        ({"tp_size": 2}, GROUPED, "keys of 128 rows over 2 ranks have no whole FP8 blocks of 128. Use fewer ranks"),
        ({}, {**GROUPED, "kv_channels": 16}, "keys of 32 rows have.*leaves out 'self_attn'"),
        ({}, {**GROUPED, "ffn_hidden_size": 1000}, "dense layers of 1000 columns have.*leaves out 'mlp'"),
        ({"tp_size": 2}, LATENT, None),
        ({}, {**LATENT, "q_lora_rank": 48}, "latent queries of 48 rows have no whole FP8 blocks"),
        ({"tp_size": 8}, {**LATENT, "v_head_dim": 64}, "heads of 1536 rows over 8 ranks"),
    ],
)
def test_blocks_are_whole(base: SlimeConfig, fields: dict[str, Any], model: dict[str, Any], says: str | None) -> None:
    found = problems(base, fields, model, fp8="block")
    assert any(re.search(says, problem) for problem in found) if says else not found, found


def test_what_a_folder_leaves_out_needs_no_blocks(base: SlimeConfig, tmp_path: Path) -> None:
    config = Fp8Format(ignored=("self_attn",)).to_config()
    hf = json.loads((resolve(config_folder(base.model)) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(hf | {"quantization_config": config}))
    assert not problems(base, {}, {**GROUPED, "kv_channels": 16}, fp8=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(hf | {"hidden_size": 1, "quantization_config": config}))
    assert "'hidden_size: 1', that of the trained model" in problems(base, {}, GROUPED, fp8=str(tmp_path))[0]
    (tmp_path / "config.json").write_text(json.dumps(hf))
    assert "has no 'quantization_config'. Set rollout.fp8=block" in problems(base, {}, GROUPED, fp8=str(tmp_path))[0]
    per_channel = {**config, "quant_method": "compressed-tensors"}
    (tmp_path / "config.json").write_text(json.dumps(hf | {"quantization_config": per_channel}))
    assert "one scale a channel" in problems(base, {}, GROUPED, fp8=str(tmp_path))[0]


def test_a_pair_needs_one_transfer_and_one_cache(base: SlimeConfig) -> None:
    cfg = copy.deepcopy(base)

    def said(prefill: dict[str, Any], decode: dict[str, Any]) -> list[str]:
        cfg.rollout.engines = {
            "p": EngineGroupConfig(role=Role.prefill, devices=1, sglang=prefill),
            "d": EngineGroupConfig(role=Role.decode, devices=1, sglang=decode),
        }
        return [str(problem) for problem in sglang_problems(read_topology(cfg), DENSE)]

    cfg.cluster.ib_devices = []
    assert "cluster.ib_devices: is empty" in said({}, {})[0]
    tcp = {"disaggregation_transfer_backend": "mooncake_tcp"}
    assert said(tcp, tcp) == []
    assert (
        "rollout.engines.d.sglang.page_size: is 64 here and None in group p" in said(tcp, {**tcp, "page_size": 64})[0]
    )
    seeded = {**tcp, "enable_deterministic_inference": True}
    assert "enable_deterministic_inference: is True here and None in group p" in said(tcp, seeded)[0], "first tokens"
    for key in EAGLE:
        assert f"sglang.{key}: is None here and {EAGLE[key]} in group p" in " ".join(said({**tcp, **EAGLE}, tcp))
    assert "which does not let go of memory" in said(*[{"disaggregation_transfer_backend": "nixl"}] * 2)[0]


@pytest.mark.parametrize(
    ("recipe", "group", "tokens"),
    [("glm5.2@h100x256", 1, 64), ("deepseek-r1@h100x128", 0, 72), ("glm4.5@h100x64", 0, None)],
)
def test_room_for_dispatched_tokens(recipe: str, group: int, tokens: int | None) -> None:
    """GLM-5.2: 12 requests of 5 tokens a rank make 60, so 64."""
    model, _, cluster = recipe.partition("@")
    cfg = examine([f"+model={model}", f"+cluster={cluster}"]).cfg
    topology = read_topology(cfg)
    of_group = topology.groups[group]
    name = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    assert engine_environment(cfg.cluster, of_group).get(name) == (str(tokens) if tokens else None)
    if tokens:
        assert dispatch_tokens(of_group) == tokens


def test_an_engine_takes_no_more_requests_than_deepep_has_room_for() -> None:
    cfg = examine(["+model=deepseek-r1", "+cluster=h100x128"]).cfg
    fields = read_topology(cfg).engines[0].fields
    assert fields["max_running_requests"] == fields["cuda_graph_max_bs_decode"] * fields["dp_size"] == 1040


def test_an_engine_that_speculates_has_requests_for_every_rank(base: SlimeConfig) -> None:
    """SGLang's own 48, divided by 64 ranks, would be none."""
    cfg = copy.deepcopy(base)
    fields = {**EAGLE, "tp_size": 64, "dp_size": 64, **ATTENTION}
    cfg.rollout.engines = {"it": EngineGroupConfig(devices=64, sglang=fields)}
    assert read_topology(cfg).engines[0].fields["max_running_requests"] == 128
    assert problems(base, fields, {**MOE, "mtp_num_layers": 1}) == []


@pytest.mark.slow
def test_sglang_itself_refuses_or_changes_these(capfd: pytest.CaptureFixture[str]) -> None:
    """On the real `ServerArgs`: each setting that a rule refuses is refused there, or has another value afterwards."""

    def after(**fields: Any) -> dict[str, Any] | str:
        try:
            args = server_args(**fields)
        except (AssertionError, ValueError) as error:
            return str(error)
        return {name: getattr(args, name) for name in (*fields, "max_running_requests")}

    changed = {
        "enable_dp_attention": after(enable_dp_attention=True, tp_size=2),
        "enable_dp_lm_head": after(enable_dp_lm_head=True, tp_size=2),
        "ep_size": after(ep_size=2, tp_size=4, moe_a2a_backend="deepep"),
        "speculative_num_draft_tokens": after(**EAGLE, speculative_num_draft_tokens=5, max_running_requests=8),
    }
    values = {name: found[name] if isinstance(found, dict) else found for name, found in changed.items()}
    assert values["enable_dp_attention"] is False
    assert values["ep_size"] == 4
    assert values["speculative_num_draft_tokens"] == 3
    assert values["enable_dp_lm_head"] is not True
    unset = after(**EAGLE, speculative_num_draft_tokens=3)
    assert isinstance(unset, dict)
    assert unset["max_running_requests"] == 48
    assert isinstance(after(tp_size=4, dp_size=3, enable_dp_attention=True), str)


QWEN3 = "pkg://slime_plugin_qwen3/assets/Qwen3-4B"
OF_FROZEN = "rollout.engines.judge.sglang"
MOVE = "Set it here, or move rollout.sglang.{} to the groups that it is for."


@pytest.mark.parametrize(
    ("every", "own", "scores", "says"),
    [
        ({"tp_size": 2}, {}, False, []),
        ({"tp_size": 2}, {"pp_size": 2}, False, []),
        ({"tp_size": 2}, {"dp_size": 2}, False, [f"{OF_FROZEN}.dp_size: is 2 without enable_dp_attention"]),
        (
            {"tp_size": 2, "ep_size": 2},
            {},
            False,
            [f"{OF_FROZEN}.ep_size: is 2, but the model has no experts (by rollout.sglang). {MOVE.format('ep_size')}"],
        ),
        ({"tp_size": 2, "ep_size": 2}, {"ep_size": 1}, False, []),
        ({"tp_size": 2}, {"tp_size": 64}, False, [f"{OF_FROZEN}.tp_size: 32 attention heads cannot be divided by 64"]),
        (
            {"tp_size": 2, "speculative_algorithm": "EAGLE", "max_running_requests": 8},
            {},
            False,
            [f"{OF_FROZEN}.speculative_algorithm: is EAGLE, but this model has no layer that drafts (by"],
        ),
        (
            {"tp_size": 2},
            {"speculative_algorithm": "EAGLE", "max_running_requests": 8},
            True,
            [f"{OF_FROZEN}.speculative_algorithm: is EAGLE, but a reward model generates nothing. Set it to null."],
        ),
    ],
)
def test_settings_of_a_group_with_a_model_of_its_own_are_held_against_that_model(
    base: SlimeConfig, tmp_path: Path, every: dict[str, Any], own: dict[str, Any], scores: bool, says: list[str]
) -> None:
    """Publishing to it is nobody's concern."""
    hf = json.loads((resolve(QWEN3) / "config.json").read_text())
    classes = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "reward"}} if scores else {}
    (tmp_path / "config.json").write_text(json.dumps({**hf, **classes}))
    cfg = copy.deepcopy(base)
    devices = {**every, **own}.get("tp_size", 1) * own.get("pp_size", 1)
    cfg.rollout.sglang = every
    cfg.rollout.engines = {"judge": EngineGroupConfig(devices=devices, sglang=own, model=str(tmp_path))}
    found = [str(problem) for problem in sglang_problems(read_topology(cfg), MOE, [gqa.BLOCK, mlp.BLOCK])]
    of_judge = [problem for problem in found if ".judge." in problem]
    assert len(of_judge) == len(says), found
    assert all(problem.startswith(said) for problem, said in zip(of_judge, says, strict=True)), found


def test_of_a_model_that_is_not_known_only_the_fields_are_looked_at(base: SlimeConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mystery", "num_hidden_layers": 2}))
    cfg = copy.deepcopy(base)
    fields = {"tp_size": 8, "ep_size": 8, "attn_cp_size": 2}
    cfg.rollout.engines = {"judge": EngineGroupConfig(devices=8, sglang=fields, model=str(tmp_path))}
    (problem,) = sglang_problems(read_topology(cfg), MOE, [gqa.BLOCK, mlp.BLOCK])
    assert str(problem).startswith(f"{OF_FROZEN}.attn_cp_size: is 2, which was never tried with slime")
