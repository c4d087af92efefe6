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
from slime.sizes.parameters import weights_of
from slime_plugin_qwen2.bridge import Qwen2

ASSETS = Path(__file__).parents[1] / "slime_plugin_qwen2/assets"
HUB = {file.parent.name: json.loads(file.read_text()) for file in ASSETS.glob("*Qwen*/config.json")}
SMALL = HUB["Qwen2.5-0.5B-Instruct"]


def test_the_bridge_keeps_the_contract() -> None:
    assert isinstance(Qwen2(), ModelBridge)
    assert Qwen2.family == SMALL["model_type"]


@pytest.mark.parametrize("name", HUB)
def test_sizes_of_a_published_model_are_those_of_transformers(name: str) -> None:
    """Sizes, head size and rotary base, as transformers' own config class completes them."""
    from transformers import Qwen2Config

    hf, theirs = HUB[name], Qwen2Config(**HUB[name])
    config, kwargs = Qwen2().transformer_config(hf), Qwen2().model_kwargs(hf)
    assert config["num_layers"] == theirs.num_hidden_layers
    assert config["kv_channels"] == theirs.hidden_size // theirs.num_attention_heads
    assert config["num_query_groups"] == theirs.num_key_value_heads
    assert config["layernorm_epsilon"] == theirs.rms_norm_eps
    assert config["add_qkv_bias"] is True
    assert kwargs["rotary_base"] == theirs.rope_parameters["rope_theta"]
    assert kwargs["share_embeddings_and_output_weights"] is theirs.tie_word_embeddings


@pytest.mark.parametrize("name", HUB)
def test_names_of_the_weights_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        theirs = Qwen2ForCausalLM(Qwen2Config(**HUB[name]))
    tied = {"lm_head.weight"} if HUB[name]["tie_word_embeddings"] else set()
    assert set(Qwen2().weight_mapping(HUB[name]).hf_names) == {name for name, _ in theirs.named_parameters()} - tied


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen2.5-Coder-0.5B-Instruct", 494_032_768),
        ("Qwen2.5-1.5B-Instruct", 1_543_714_304),
        ("Qwen2.5-3B-Instruct", 3_085_938_688),
        ("Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen2.5-14B-Instruct", 14_770_033_664),
        ("Qwen2.5-32B-Instruct", 32_763_876_352),
        ("DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("DeepSeek-R1-Distill-Qwen-7B", 7_615_616_512),
        ("DeepSeek-R1-Distill-Qwen-14B", 14_770_033_664),
        ("DeepSeek-R1-Distill-Qwen-32B", 32_763_876_352),
    ],
)
def test_a_model_has_as_many_parameters_as_the_hub_counts(name: str, published: int) -> None:
    hf = HUB[name]
    model = {**Qwen2().transformer_config(hf), "vocab_size": hf["vocab_size"]}
    assert sum(weight.numel for weight in weights_of(model, Qwen2().weight_mapping(hf))) == published


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_sliding_window": True}, "use_sliding_window: True"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"use_mrope": True}, "use_mrope: True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type: yarn"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ],
)
def test_what_would_change_the_model_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        Qwen2().transformer_config(SMALL | change)


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, slime_plugin_qwen2 as plugin\n"
        "for family, factory in plugin.slime_models().items():\n"
        "    assert factory().family == family\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
