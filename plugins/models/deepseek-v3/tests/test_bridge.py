"""What the bridge reads from config.json, and what it refuses.

`assets/DeepSeek-R1` was put together from public copies of the published file, less `auto_map`,
`transformers_version` and `quantization_config`, which a bf16 copy of the checkpoint has not. Its sizes give the
684,489,845,504 parameters of the published checkpoint. `assets/DeepSeek-V3.2` has what DeepSeek-V3.2 adds, as public
copies of its fields have it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.errors import SlimeError
from slime.models.bridge import TraitsBridge
from slime_plugin_deepseek_v3.bridge import DeepseekV3, DeepseekV32

HERE = Path(__file__).parent
ASSETS = HERE.parent / "slime_plugin_deepseek_v3/assets"
HF, SPARSE = (json.loads((ASSETS / f"DeepSeek-{version}/config.json").read_text()) for version in ("R1", "V3.2"))
YARN = HF["rope_scaling"]


def test_bridge_keeps_the_contract() -> None:
    for bridge, hf in ((DeepseekV3(), HF), (DeepseekV32(), SPARSE)):
        assert isinstance(bridge, TraitsBridge)
        assert bridge.family == hf["model_type"]


def test_model_of_the_hub() -> None:
    config, mapping = DeepseekV3().transformer_config(HF), DeepseekV3().weight_mapping(HF)
    assert config["multi_latent_attention"] is True
    assert (config["q_lora_rank"], config["kv_lora_rank"]) == (1536, 512)
    assert (config["qk_head_dim"], config["qk_pos_emb_head_dim"], config["v_head_dim"]) == (128, 64, 128)
    assert (config["rope_type"], config["rotary_scaling_factor"], config["mscale_all_dim"]) == ("yarn", 40, 1.0)
    assert (config["moe_router_num_groups"], config["moe_router_group_topk"]) == (8, 4)
    assert config["moe_layer_freq"] == [0] * 3 + [1] * 58
    assert config["mtp_num_layers"] == 1
    assert "model.layers.61.mlp.experts.7.up_proj.weight" in mapping.draft_names
    assert "model.layers.61.shared_head.norm.weight" in mapping.draft_names
    assert mapping.copies["model.layers.61.shared_head.head.weight"] == "lm_head.weight"
    assert "model.layers.60.mlp.experts.255.up_proj.weight" in mapping.hf_names
    assert "model.layers.3.mlp.gate.e_score_correction_bias" in mapping.hf_names
    assert "model.layers.2.mlp.gate.weight" not in mapping.hf_names


def test_sparse_attention_is_all_that_v32_adds() -> None:
    dense, sparse = DeepseekV3().transformer_config(HF), DeepseekV32().transformer_config(SPARSE)
    assert {name: value for name, value in sparse.items() if not name.startswith("dsa_")} == dense
    assert (sparse["dsa_indexer_n_heads"], sparse["dsa_indexer_topk"]) == (64, 2048)
    assert sparse["dsa_indexer_rotary_interleaved"] is False
    added = DeepseekV32().weight_mapping(SPARSE).hf_names - DeepseekV3().weight_mapping(HF).hf_names
    indexer = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
    assert added == {f"model.layers.{layer}.self_attn.indexer.{name}" for layer in range(62) for name in indexer}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_experts": 8}, "num_experts: 8"),
        ({"layer_types": ["full_attention"] * 61}, "layer_types"),
        ({"index_local_window": 512}, "index_local_window"),
    ],
)
def test_what_would_change_the_sparse_model_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        DeepseekV32().transformer_config(SPARSE | change)


def test_sparse_plans() -> None:
    """Every layer chooses keys, so any may begin a stage; sparse attention computes no part of itself again."""
    stages = {"pipeline_model_parallel_size": 4, "pipeline_model_parallel_layout": "Et*16|t*15|t*15|t*15L"}
    assert not DeepseekV32().plan_problems(SPARSE, stages)
    [problem] = DeepseekV32().plan_problems(SPARSE, {"recompute_granularity": "selective"})
    assert "leave core_attn out" in problem


def test_both_spellings_of_rotary_embeddings_are_one() -> None:
    new = {key: value for key, value in HF.items() if key not in ("rope_scaling", "rope_theta")}
    new["rope_parameters"] = {**YARN, "rope_type": "yarn", "rope_theta": 10000}
    assert DeepseekV3().transformer_config(new) == DeepseekV3().transformer_config(HF)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scoring_func": "softmax"}, "scoring_func: softmax"),
        ({"topk_method": "greedy"}, "topk_method: greedy"),
        ({"moe_layer_freq": 2}, "moe_layer_freq: 2"),
        ({"rope_interleave": False}, "rope_interleave: False"),
        ({"num_key_value_heads": 8}, "num_key_value_heads: 8"),
        ({"attention_bias": True}, "attention_bias: True"),
        ({"topk_group": 2}, "topk_group: 2"),
        ({"rope_scaling": {**YARN, "type": "linear"}}, "rope_scaling.type: linear"),
        ({"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0}}, "mscale: 0.7"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.*slime convert fp8-to-bf16"),
        ({"mlp_layer_types": ["dense"] * 61}, "mlp_layer_types"),
    ],
)
def test_what_would_change_the_model_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        DeepseekV3().transformer_config(HF | change)


@pytest.mark.parametrize(("name", "bridge"), [("deepseek-v3", DeepseekV3()), ("deepseek-v3.2", DeepseekV32())])
def test_tiny_model_is_supported(name: str, bridge: TraitsBridge) -> None:
    hf = json.loads((ASSETS / f"{name}-tiny/config.json").read_text())
    assert bridge.transformer_config(hf)["num_layers"] == hf["num_hidden_layers"]


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, slime_plugin_deepseek_v3 as plugin\n"
        "for family, factory in plugin.slime_models().items():\n"
        "    assert factory().family == family\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
