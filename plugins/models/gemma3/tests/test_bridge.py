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
from slime_megatron.transformer import gqa
from slime_plugin_gemma3.bridge import Gemma3

ASSETS = Path(__file__).parents[1] / "slime_plugin_gemma3/assets"
HUB = {file.parent.name: json.loads(file.read_text()) for file in ASSETS.glob("gemma-*/config.json")}
SMALL = HUB["gemma-3-270m-it"]
SCALED = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


def test_the_bridge_keeps_the_contract() -> None:
    assert isinstance(Gemma3(), ModelBridge)
    assert Gemma3.family == SMALL["model_type"]


@pytest.mark.parametrize("name", HUB)
def test_a_published_model_is_as_transformers_completes_it(name: str) -> None:
    from transformers import Gemma3TextConfig

    hf, theirs = HUB[name], Gemma3TextConfig(**HUB[name])
    config, kwargs = Gemma3().transformer_config(hf), Gemma3().model_kwargs(hf)
    assert config["num_layers"] == theirs.num_hidden_layers
    assert config["kv_channels"] == theirs.head_dim
    assert config["softmax_scale"] == theirs.query_pre_attn_scalar**-0.5
    assert config["window_size"] == (theirs.sliding_window - 1, 0)
    windowed = [kind == "sliding_attention" for kind in theirs.layer_types]
    assert list(map(bool, config["window_attn_skip_freq"])) == windowed
    assert kwargs["rotary_base"] == theirs.rope_parameters["full_attention"]["rope_theta"]
    assert theirs.rope_parameters["sliding_attention"]["rope_theta"] == 10000
    assert kwargs["share_embeddings_and_output_weights"] is theirs.tie_word_embeddings


def test_flops_of_attention_are_those_of_the_keys_that_transformers_attends_to() -> None:
    """Counted in its model: weights above 0 of every head, each two products of a head's size."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    hf, tokens = json.loads((ASSETS / "gemma3-tiny/config.json").read_text()), 40
    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hf, attn_implementation="eager"))
    seen = theirs(torch.arange(tokens)[None], output_attentions=True).attentions
    config = Gemma3().transformer_config(hf)
    assert len({int((of_layer > 0).sum()) for of_layer in seen}) == 2, "with and without a window"
    for layer, of_layer in enumerate(seen):
        stated = gqa.BLOCK.attention(config, layer)
        own = config["num_attention_heads"] * min(tokens, stated.most_keys) / 2  # of which halves are counted
        counted = 4 * config["kv_channels"] * (int((of_layer > 0).sum()) - own)
        assert stated.flops * stated.keys(tokens) * tokens == pytest.approx(counted)


@pytest.mark.parametrize("name", HUB)
def test_names_of_the_weights_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    with torch.device("meta"):
        theirs = Gemma3ForCausalLM(Gemma3TextConfig(**HUB[name]))
    named = {name for name, _ in theirs.named_parameters()} - {"lm_head.weight"}
    assert set(Gemma3().weight_mapping(HUB[name]).hf_names) == named


@pytest.mark.parametrize(("name", "published"), [("gemma-3-270m-it", 268_098_176), ("gemma-3-1b-it", 999_885_952)])
def test_a_model_has_as_many_parameters_as_the_hub_counts(name: str, published: int) -> None:
    hf = HUB[name]
    model = {**Gemma3().transformer_config(hf), "vocab_size": hf["vocab_size"]}
    assert sum(weight.numel for weight in weights_of(model, Gemma3().weight_mapping(hf))) == published


def test_both_spellings_of_rotary_settings_are_read() -> None:
    old = {"rope_theta": 1000000, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    plain = {key: value for key, value in SMALL.items() if not key.startswith("rope")}
    one, other = Gemma3().model_kwargs(plain | old), Gemma3().model_kwargs(plain | {"rope_parameters": SCALED})
    assert one == other
    assert one["seq_len_interpolation_factor"] == 8.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_bias": True}, "attention_bias: True"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention: True"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0"),
        ({"hidden_activation": "gelu"}, "hidden_activation: gelu"),
        ({"rope_local_base_freq": 20000.0}, "rope_local_base_freq: 20000.0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_type: yarn"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
        ({"vision_config": {"hidden_size": 1152}}, "vision_config"),
    ],
)
def test_what_would_change_the_model_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SlimeError, match=named):
        Gemma3().model_kwargs(SMALL | change)


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys, slime_plugin_gemma3 as plugin\n"
        "for family, factory in plugin.slime_models().items():\n"
        "    assert factory().family == family\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
