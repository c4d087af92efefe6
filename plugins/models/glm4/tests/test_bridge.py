"""What the bridge reads from config.json, and what it refuses.

`assets/` holds published config.json files, field by field: with the keys in their order, those of GLM-4-9B-0414 and
GLM-4.7-Flash have the SHA-256 of the originals. GLM-4.5's and GLM-4.5-Air's were put together from public copies; their
sizes give the 358,337,791,296 and 110,468,824,832 parameters of the published checkpoints. GLM-4.7's, which GLM-4.6 has
too, is GLM-4.5's with a longer context, as public copies and the one list of sizes in THUDM/slime for both have it.
GLM-4-32B-0414's was put together from what llama.cpp prints of a conversion: 61 layers, 613 tensors, 32.57 billion
parameters, and no biases among its 245 fp32 tensors (four norms a layer, and the last).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine
from slime.errors import SlimeError
from slime.models.bridge import ModelBridge
from slime_plugin_glm4.bridge import Glm4, Glm4Moe, Glm4MoeLite

ASSETS = Path(__file__).parents[1] / "slime_plugin_glm4/assets"
FILES = {file.stem: file for file in Path(__file__).parent.glob("configs/*.json")}
FILES |= {file.parent.name: file for file in ASSETS.glob("*/config.json")}
CONFIGS = {name: json.loads(file.read_text()) for name, file in FILES.items()}
DENSE, MOE = CONFIGS["dense"], CONFIGS["moe"]
LITE = CONFIGS["GLM-4.7-Flash"]
FAMILIES = [(Glm4(), DENSE), (Glm4Moe(), MOE)]


@pytest.mark.parametrize(("bridge", "hf"), FAMILIES)
def test_bridges_keep_the_contract(bridge: ModelBridge, hf: dict[str, Any]) -> None:
    assert isinstance(bridge, ModelBridge)
    assert bridge.family == hf["model_type"]


def test_dense_model_of_the_hub() -> None:
    hf = CONFIGS["GLM-4-9B-0414"]  # rotary settings in the spelling before transformers 5
    config, kwargs = Glm4().transformer_config(hf), Glm4().model_kwargs(hf)
    assert (config["num_layers"], config["num_query_groups"], config["kv_channels"]) == (40, 2, 128)
    assert config["rotary_interleaved"] is True
    assert config["add_qkv_bias"] is True
    assert kwargs["rotary_base"] == 10000.0
    assert kwargs["rotary_percent"] == 0.5
    assert kwargs["share_embeddings_and_output_weights"] is False


def test_larger_dense_model_of_the_hub_has_no_biases() -> None:
    mapping = Glm4().weight_mapping(CONFIGS["GLM-4-32B-0414"])
    assert len(mapping.hf_names) == 613
    assert len([name for name in mapping.hf_names if "norm" in name]) == 245
    assert not [name for name in mapping.hf_names if name.endswith(".bias")]


def test_models_of_a_longer_context_are_the_same_otherwise() -> None:
    short, long = CONFIGS["GLM-4.5"], CONFIGS["GLM-4.7"]
    assert long["max_position_embeddings"] == 202_752
    assert Glm4Moe().transformer_config(long) == Glm4Moe().transformer_config(short)
    assert Glm4Moe().weight_mapping(long).hf_names == Glm4Moe().weight_mapping(short).hf_names


def test_moe_model_of_the_hub() -> None:
    hf = CONFIGS["GLM-4.5"]
    config, mapping = Glm4Moe().transformer_config(hf), Glm4Moe().weight_mapping(hf)
    assert config["moe_layer_freq"] == [0] * 3 + [1] * 89
    assert config["moe_router_topk_scaling_factor"] == 2.5
    assert config["moe_shared_expert_intermediate_size"] == 1536
    assert config["rotary_interleaved"] is False
    assert config["mtp_num_layers"] == 1
    assert "model.layers.92.mlp.experts.7.up_proj.weight" in mapping.draft_names
    assert "model.layers.92.shared_head.norm.weight" in mapping.draft_names
    assert mapping.copies["model.layers.92.shared_head.head.weight"] == "lm_head.weight"
    assert "model.layers.91.mlp.experts.159.up_proj.weight" in mapping.hf_names
    assert "model.layers.2.mlp.gate_proj.weight" in mapping.hf_names
    assert "model.layers.2.mlp.gate.weight" not in mapping.hf_names


def test_small_moe_model_of_the_hub_has_no_qk_norms() -> None:
    hf = CONFIGS["GLM-4.5-Air"]
    config, mapping = Glm4Moe().transformer_config(hf), Glm4Moe().weight_mapping(hf)
    assert config["moe_layer_freq"] == [0] + [1] * 45
    assert (config["qk_layernorm"], config["moe_router_topk_scaling_factor"]) == (False, 1.0)
    assert "model.layers.0.self_attn.k_proj.bias" in mapping.hf_names
    assert not [name for name in mapping.hf_names if "q_norm" in name]


def test_latent_model_of_the_hub() -> None:
    """The number of tensors is that of the published model.safetensors.index.json."""
    config, mapping = Glm4MoeLite().transformer_config(LITE), Glm4MoeLite().weight_mapping(LITE)
    assert (config["q_lora_rank"], config["kv_lora_rank"], config["v_head_dim"]) == (768, 512, 256)
    assert (config["qk_head_dim"], config["qk_pos_emb_head_dim"]) == (192, 64)
    assert (config["rope_type"], config["rotary_base"]) == ("rope", 1000000)
    assert config["moe_layer_freq"] == [0] + [1] * 46
    assert "model.layers.47.self_attn.kv_b_proj.weight" in mapping.draft_names
    assert len(mapping.hf_names) + len(mapping.copies) == 9_703
    assert "model.layers.46.mlp.experts.63.up_proj.weight" in mapping.hf_names


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mlp_layer_types": ["sparse"] * 47}, "mlp_layer_types"),
        ({"topk_method": "greedy"}, "topk_method: greedy"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.type: linear"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
    ],
)
def test_latent_model_that_would_be_another_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        Glm4MoeLite().transformer_config(LITE | change)


@pytest.mark.parametrize(("bridge", "hf"), FAMILIES)
def test_both_spellings_of_rotary_embeddings_are_one(bridge: ModelBridge, hf: dict[str, Any]) -> None:
    old = {key: value for key, value in hf.items() if key != "rope_parameters"}
    old |= {"rope_theta": hf["rope_parameters"]["rope_theta"], "partial_rotary_factor": 0.5, "rope_scaling": None}
    assert bridge.model_kwargs(old) == bridge.model_kwargs(hf)
    assert bridge.transformer_config(old) == bridge.transformer_config(hf)


@pytest.mark.parametrize(("bridge", "hf"), FAMILIES)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: gelu"),
        ({"attention_dropout": 0.1}, "attention_dropout: 0.1"),
        ({"sliding_window": 4096}, "sliding_window: 4096"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_type: yarn"),
    ],
)
def test_what_would_change_the_model_is_refused(
    bridge: ModelBridge, hf: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    with pytest.raises(SlimeError, match=named):
        bridge.transformer_config(hf | change)


@pytest.mark.parametrize("change", [{"num_nextn_predict_layers": 2}, {"tie_word_embeddings": True}])
def test_prediction_that_engines_or_megatron_cannot_do_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SlimeError, match=next(iter(change))):
        Glm4Moe().transformer_config(MOE | change)


@pytest.mark.parametrize("change", [{"norm_topk_prob": False}, {"n_group": 4, "topk_group": 1}])
def test_routing_that_megatron_computes_otherwise_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SlimeError, match="not supported"):
        Glm4Moe().transformer_config(MOE | change)


@pytest.mark.parametrize(("bridge", "hf"), FAMILIES)
def test_missing_vocabulary_is_named(bridge: ModelBridge, hf: dict[str, Any]) -> None:
    with pytest.raises(SlimeError, match="'vocab_size' is missing"):
        bridge.transformer_config({key: value for key, value in hf.items() if key != "vocab_size"})


@pytest.mark.parametrize(
    ("asset", "bridge"), [("glm4-tiny", Glm4()), ("glm4-moe-tiny", Glm4Moe()), ("glm4-moe-lite-tiny", Glm4MoeLite())]
)
def test_the_models_of_the_demo_are_supported(asset: str, bridge: ModelBridge) -> None:
    hf = json.loads((ASSETS / asset / "config.json").read_text())
    assert bridge.transformer_config(hf)["num_layers"] == hf["num_hidden_layers"]


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, slime_plugin_glm4 as plugin\n"
        "for family, factory in plugin.slime_models().items():\n"
        "    assert factory().family == family\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_engine_of_the_larger_family_has_no_redundant_experts() -> None:
    """SGLang's `models/glm4_moe.py` counts them and builds its layers without them; the lite one's does."""
    for recipe, count, expected in (("glm4.5@h100x64", 32, 1), ("glm4.7-flash@h100x24", 8, 0)):
        model, cluster = recipe.split("@")
        redundant = f"rollout.sglang.ep_num_redundant_experts={count}"
        found = [str(problem) for problem in examine([f"+model={model}", f"+cluster={cluster}", redundant]).problems]
        assert sum("ep_num_redundant_experts: leave it out" in problem for problem in found) == expected
