"""What the bridge reads from config.json, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slime.errors import SlimeError
from slime.models.bridge import ModelBridge
from slime_plugin_llama.bridge import Llama

ASSETS = Path(__file__).parents[1] / "slime_plugin_llama/assets"
HUB = {file.parent.name: json.loads(file.read_text()) for file in ASSETS.glob("*-Instruct/config.json")}
SMOLLM = HUB["SmolLM2-135M-Instruct"]


def test_the_bridge_keeps_the_contract() -> None:
    assert isinstance(Llama(), ModelBridge)
    assert Llama.family == SMOLLM["model_type"]


@pytest.mark.parametrize("name", HUB)
def test_sizes_of_a_published_model_are_those_of_transformers(name: str) -> None:
    """Sizes, head size and rotary base, as transformers' own config class completes them."""
    from transformers import LlamaConfig

    hf, theirs = HUB[name], LlamaConfig(**HUB[name])
    config, kwargs = Llama().transformer_config(hf), Llama().model_kwargs(hf)
    assert config["num_layers"] == theirs.num_hidden_layers
    assert config["kv_channels"] == theirs.head_dim
    assert config["num_query_groups"] == theirs.num_key_value_heads
    assert config["layernorm_epsilon"] == theirs.rms_norm_eps
    assert kwargs["rotary_base"] == theirs.rope_parameters["rope_theta"]
    assert kwargs["share_embeddings_and_output_weights"] is theirs.tie_word_embeddings


@pytest.mark.parametrize("name", HUB)
def test_names_of_the_weights_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        theirs = LlamaForCausalLM(LlamaConfig(**HUB[name]))
    tied = {"lm_head.weight"} if HUB[name]["tie_word_embeddings"] else set()
    assert set(Llama().weight_mapping(HUB[name]).hf_names) == {name for name, _ in theirs.named_parameters()} - tied


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_bias": True}, "attention_bias: True"),
        ({"mlp_bias": True}, "mlp_bias: True"),
        ({"rope_interleaved": True}, "rope_interleaved: True"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_type: longrope"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"sliding_window": 4096}, "sliding_window"),
    ],
)
def test_what_would_change_the_model_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        Llama().transformer_config(SMOLLM | change)


def test_heads_of_llama_2_have_no_groups() -> None:
    """Its config.json has no `num_key_value_heads`."""
    hf = {key: value for key, value in SMOLLM.items() if key != "num_key_value_heads"}
    assert Llama().transformer_config(hf)["num_query_groups"] == SMOLLM["num_attention_heads"]


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, slime_plugin_llama as plugin\n"
        "for family, factory in plugin.slime_models().items():\n"
        "    assert factory().family == family\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
