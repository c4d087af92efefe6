"""What the bridge reads from config.json, and what it refuses.

`assets/` holds the published config.json of GLM-5.1 and GLM-5.2, field by field: written out as they were, they have
their SHA-256. GLM-5's differs from GLM-5.1's in `transformers_version` alone.
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
from slime.models.config_reader import ConfigReader
from slime_megatron.sparse_attention import choosing_layers, index_layers
from slime_plugin_glm5.bridge import GlmMoeDsa

HERE = Path(__file__).parent
ASSETS = HERE.parent / "slime_plugin_glm5/assets"
GLM51, GLM52 = (json.loads((ASSETS / f"GLM-{version}/config.json").read_text()) for version in ("5.1", "5.2"))
BRIDGE = GlmMoeDsa()


def test_bridge_keeps_the_contract() -> None:
    assert isinstance(BRIDGE, TraitsBridge)
    assert BRIDGE.family == GLM52["model_type"]


def test_published_sizes() -> None:
    config, mapping = BRIDGE.transformer_config(GLM52), BRIDGE.weight_mapping(GLM52)
    assert config["moe_layer_freq"] == [0] * 3 + [1] * 75
    assert (config["num_moe_experts"], config["moe_router_topk"]) == (256, 8)
    assert (config["q_lora_rank"], config["kv_lora_rank"], config["dsa_indexer_topk"]) == (2048, 512, 2048)
    assert config["dsa_indexer_rotary_interleaved"] is True
    assert "model.layers.77.mlp.experts.255.up_proj.weight" in mapping.hf_names


@pytest.mark.parametrize(("hf", "num_tensors", "rotary_base"), [(GLM51, 59_870, 1_000_000), (GLM52, 59_585, 8_000_000)])
def test_every_tensor_of_a_published_checkpoint_has_its_name(
    hf: dict[str, Any], num_tensors: int, rotary_base: int
) -> None:
    """The counts are those of the published model.safetensors.index.json."""
    mapping = BRIDGE.weight_mapping(hf)
    assert (len(mapping.hf_names), len(mapping.draft_names)) == (num_tensors, 791)
    assert all(name.startswith("model.layers.78.") for name in mapping.draft_names)
    assert BRIDGE.transformer_config(hf)["rotary_base"] == rotary_base


def test_layers_that_reuse_keys_own_no_indexer() -> None:
    choosing = choosing_layers(GLM52)
    assert [layer + 1 for layer in choosing] == [1, 2, 3, *range(7, 76, 4)]
    owners = {int(name.split(".")[2]) for name in BRIDGE.weight_mapping(GLM52).hf_names if ".indexer." in name}
    assert owners == {*choosing, GLM52["num_hidden_layers"]}, "and the prediction layer"


@pytest.mark.parametrize("frequency", [1, 2, 3, 4])
def test_the_prediction_layer_has_an_indexer_whatever_its_number(frequency: int) -> None:
    hf = GLM52 | {"indexer_types": None, "index_topk_freq": frequency}
    names = {name for name in BRIDGE.weight_mapping(hf).draft_names if ".indexer." in name}
    assert names == {
        f"model.layers.78.self_attn.indexer.{name}"
        for name in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
    }


def test_a_checkpoint_without_a_prediction_layer() -> None:
    hf = GLM52 | {"num_nextn_predict_layers": 0}
    assert BRIDGE.transformer_config(GLM52)["mtp_num_layers"] == 1
    assert BRIDGE.transformer_config(hf)["mtp_num_layers"] is None
    assert not BRIDGE.weight_mapping(hf).draft_names


@pytest.mark.parametrize(
    ("fields", "choosing"),
    [
        ({}, "FFFFFFFF"),
        ({"index_topk_freq": 3}, "FFSSFSSF"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 3}, "FFFSFSFS"),
        ({"index_topk_freq": 2, "index_topk_pattern": "FSSSFSSS"}, "FSSSFSSS"),
        ({"indexer_types": ["full", *["shared"] * 3] * 2, "index_topk_pattern": "FSSSFSSS"}, "FSSSFSSS"),
        ({"indexer_types": ["full"] * 8, "index_topk_freq": 1}, "FFFFFFFF"),
    ],
)
def test_spellings_of_index_sharing(fields: dict[str, Any], choosing: str) -> None:
    layers = index_layers(ConfigReader({"num_hidden_layers": 8, **fields}))
    assert "".join("F" if chooses else "S" for chooses in layers) == choosing


@pytest.mark.parametrize("fields", [{}, {"index_topk_freq": 1}, {"index_topk_pattern": "FFSSFSSF"}])
def test_layers_that_engines_would_read_otherwise_are_refused(fields: dict[str, Any]) -> None:
    kinds = ["full", *["shared"] * 3] * 2
    with pytest.raises(SlimeError, match="'indexer_types' are other layers"):
        index_layers(ConfigReader({"num_hidden_layers": 8, "indexer_types": kinds, **fields}))


@pytest.mark.parametrize("pattern", ["SFFFFFFF", "FFF"])
def test_a_pattern_that_leaves_a_layer_without_keys_is_refused(pattern: str) -> None:
    with pytest.raises(SlimeError, match="the first must choose"):
        index_layers(ConfigReader({"num_hidden_layers": 8, "index_topk_pattern": pattern}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"moe_router_dtype": "bfloat16"}, "moe_router_dtype"),
        ({"attention_bias": True}, "attention_bias: True"),
        ({"mlp_layer_types": ["dense"] * 78}, "mlp_layer_types"),
        ({"index_local_window": 512}, "index_local_window"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_what_would_change_the_model_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        BRIDGE.transformer_config(GLM52 | change)


def test_a_stage_that_starts_on_a_reusing_layer_is_a_plan_problem() -> None:
    [problem] = BRIDGE.plan_problems(GLM52, {"pipeline_model_parallel_size": 2})
    assert "start on layer 39 (counted from 0), which reuses the keys that an earlier layer chooses" in problem
    assert "the nearest to start on are 38, 42" in problem


@pytest.mark.parametrize(
    ("layout", "starts"),
    [
        ("Et*10|t*20|t*20|t*28L", ""),
        ("Et*10|t*21|t*19|t*28L", "layer 31 "),
        ("Et*39|t*4|t*4|t*31L", "layers 39, 43, 47 "),
    ],
)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_stages_of_a_pipeline_layout(layout: str, starts: str, num_ranks: int) -> None:
    """Interleaved stages count as stages: between two chunks of a rank lie those of others."""
    megatron: dict[str, Any] = {"pipeline_model_parallel_size": num_ranks, "pipeline_model_parallel_layout": layout}
    if num_ranks == 2:
        megatron["virtual_pipeline_model_parallel_size"] = 2
    problems = BRIDGE.plan_problems(GLM52, megatron)
    assert len(problems) == bool(starts)
    assert all(f"start on {starts}(counted from 0)" in problem for problem in problems)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"recompute_granularity": "selective"}, "leave core_attn out"),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj", "moe_act"]},
            "leave mla_up_proj out",
        ),
    ],
)
def test_a_part_that_cannot_be_computed_again_is_a_plan_problem(settings: dict[str, Any], named: str) -> None:
    [problem] = BRIDGE.plan_problems(GLM52, settings)
    assert named in problem


@pytest.mark.parametrize(
    "settings",
    [{"recompute_granularity": "full"}, {"recompute_granularity": "selective", "recompute_modules": ["moe_act"]}],
)
def test_what_can_be_computed_again_is_none(settings: dict[str, Any]) -> None:
    assert not BRIDGE.plan_problems(GLM52, settings)


def test_tiny_model_is_supported() -> None:
    hf = json.loads((ASSETS / "glm5-tiny/config.json").read_text())
    assert BRIDGE.transformer_config(hf)["dsa_indexer_layers"] == [True, True, False, True]


def test_planning_imports_no_torch() -> None:
    code = (
        "import json, sys, slime_plugin_glm5 as plugin\n"
        f"hf = json.load(open({str(ASSETS / 'GLM-5.2/config.json')!r}))\n"
        "bridge = plugin.slime_models()['glm_moe_dsa']()\n"
        "assert bridge.plan_problems(hf, {'pipeline_model_parallel_size': 2})\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
