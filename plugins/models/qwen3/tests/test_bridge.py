"""What the bridge reads from config.json, and what it refuses.

`assets/` holds the published config.json files, field by field: written out as they were, they have their SHA-256.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.errors import SlimeError
from slime.models.bridge import ModelBridge
from slime_plugin_qwen3.bridge import Qwen3, Qwen3Moe

HERE = Path(__file__).parent
ASSETS = HERE.parent / "slime_plugin_qwen3/assets"
HUB = {file.parent.name: json.loads(file.read_text()) for file in ASSETS.glob("Qwen3-*/config.json")}
DENSE, MOE = HUB["Qwen3-4B"], HUB["Qwen3-30B-A3B"]
FAMILIES = [(Qwen3(), DENSE), (Qwen3Moe(), MOE)]


@pytest.mark.parametrize(("bridge", "hf"), FAMILIES)
def test_bridges_keep_the_contract(bridge: ModelBridge, hf: dict[str, Any]) -> None:
    assert isinstance(bridge, ModelBridge)
    assert bridge.family == hf["model_type"]


def test_dense_model_of_the_hub() -> None:
    config, kwargs = Qwen3().transformer_config(DENSE), Qwen3().model_kwargs(DENSE)
    assert (config["num_layers"], config["num_query_groups"], config["kv_channels"]) == (36, 8, 128)
    assert config["qk_layernorm"] is True
    assert kwargs["rotary_base"] == 1000000
    assert kwargs["rotary_percent"] == 1.0
    assert kwargs["share_embeddings_and_output_weights"] is True


@pytest.mark.parametrize(
    ("name", "num_layers", "num_tensors"), [("Qwen3-30B-A3B", 48, 18_867), ("Qwen3-235B-A22B", 94, 36_945)]
)
def test_moe_models_of_the_hub(name: str, num_layers: int, num_tensors: int) -> None:
    """The number of tensors is that of the published model.safetensors.index.json."""
    config, mapping = Qwen3Moe().transformer_config(HUB[name]), Qwen3Moe().weight_mapping(HUB[name])
    assert (config["num_layers"], config["num_moe_experts"], config["moe_router_topk"]) == (num_layers, 128, 8)
    assert config["moe_router_score_function"] == "softmax"
    assert len(mapping.hf_names) == num_tensors
    assert f"model.layers.{num_layers - 1}.mlp.experts.127.up_proj.weight" in mapping.hf_names
    assert not [name for name in mapping.hf_names if "shared" in name or "correction_bias" in name]


def test_number_of_experts_has_two_names() -> None:
    renamed = {key: value for key, value in MOE.items() if key != "num_experts"} | {"num_local_experts": 128}
    assert Qwen3Moe().transformer_config(renamed) == Qwen3Moe().transformer_config(MOE)
    assert Qwen3Moe().weight_mapping(renamed) == Qwen3Moe().weight_mapping(MOE)


@pytest.mark.parametrize(("bridge", "hf"), FAMILIES)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_sliding_window": True}, "use_sliding_window: True"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias: True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type: yarn"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_what_would_change_the_model_is_refused(
    bridge: ModelBridge, hf: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    with pytest.raises(SlimeError, match=named):
        bridge.transformer_config(hf | change)


@pytest.mark.parametrize("change", [{"decoder_sparse_step": 2}, {"mlp_only_layers": [0]}])
def test_dense_layers_between_the_experts_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SlimeError, match="not supported"):
        Qwen3Moe().transformer_config(MOE | change)


@pytest.mark.parametrize(("asset", "bridge"), [("qwen3-tiny", Qwen3()), ("qwen3-moe-tiny", Qwen3Moe())])
def test_tiny_models_are_supported(asset: str, bridge: ModelBridge) -> None:
    hf = json.loads((ASSETS / asset / "config.json").read_text())
    assert bridge.transformer_config(hf)["num_layers"] == hf["num_hidden_layers"]


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, slime_plugin_qwen3 as plugin\n"
        "for family, factory in plugin.slime_models().items():\n"
        "    assert factory().family == family\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
