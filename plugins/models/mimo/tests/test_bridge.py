"""What the bridge reads from config.json, and what it refuses.

`assets/` holds the fields of MiMo-7B-RL as public implementations give them; they make the published numbers of
parameters and tensors. The published file itself was not at hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.errors import SlimeError
from slime.models.bridge import ModelBridge
from slime_plugin_mimo.bridge import Mimo

HERE = Path(__file__).parent
ASSETS = HERE.parent / "slime_plugin_mimo/assets"
HUB = json.loads((ASSETS / "MiMo-7B-RL/config.json").read_text())


def test_bridge_keeps_the_contract() -> None:
    assert isinstance(Mimo(), ModelBridge)
    assert Mimo().family == HUB["model_type"]


def test_model_of_the_hub() -> None:
    config, kwargs = Mimo().transformer_config(HUB), Mimo().model_kwargs(HUB)
    assert (config["num_layers"], config["num_query_groups"], config["kv_channels"]) == (36, 8, 128)
    assert (config["add_qkv_bias"], config["qk_layernorm"], config["layernorm_epsilon"]) == (True, False, 1e-5)
    assert (kwargs["rotary_base"], kwargs["rotary_percent"]) == (640000, 1.0)
    assert kwargs["share_embeddings_and_output_weights"] is False


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_sliding_window": True}, "use_sliding_window: True"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"attention_bias": False}, "attention_bias: False"),
        ({"use_mrope": True}, "use_mrope: True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type: yarn"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_what_would_change_the_model_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        Mimo().transformer_config(HUB | change)


def test_size_of_the_model_of_the_hub() -> None:
    """7.62 billion parameters and the prediction layer's; 435 tensors and the prediction layer's 16."""
    from slime_plugin_mimo.hf import MimoConfig, MiMoForCausalLM

    with torch.device("meta"):
        model = MiMoForCausalLM(MimoConfig(**HUB))
    assert sum(parameter.numel() for parameter in model.parameters()) == 7_833_409_536
    assert sum(parameter.numel() for parameter in model.model.mtp_layers.parameters()) == 7_833_409_536 - 7_622_619_136
    assert Mimo().weight_mapping(HUB).hf_names == model.state_dict().keys()
    assert len(model.state_dict()) == 435 + 16


def test_prediction_layer_of_the_model_of_the_hub() -> None:
    mapping = Mimo().weight_mapping(HUB)
    assert Mimo().transformer_config(HUB)["mtp_num_layers"] == 1
    assert len(mapping.draft_names) == 16
    assert mapping.by_megatron_name["mtp.layers.0.eh_proj.weight"].hf == ("model.mtp_layers.0.input_proj.weight",)


def test_prediction_layer_is_left_out_of_a_cut_model() -> None:
    cut = Mimo().weight_mapping(HUB | {"num_hidden_layers": 12, "num_nextn_predict_layers": 0})
    assert cut.ignored == Mimo().weight_mapping(HUB).draft_names


def test_tiny_model_is_supported() -> None:
    hf = json.loads((ASSETS / "mimo-tiny/config.json").read_text())
    assert Mimo().transformer_config(hf)["num_layers"] == hf["num_hidden_layers"]


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, slime_plugin_mimo as plugin\n"
        "for family, factory in plugin.slime_models().items():\n"
        "    assert factory().family == family\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
