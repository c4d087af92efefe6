"""From the config.json of `gemma3_text` to Megatron-core and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import Rules
from slime_megatron.family import Decoder
from slime_megatron.transformer import decoder, embeddings, gqa, mlp
from slime_plugin_gemma3.published import GEMMA3, LOCAL_BASE

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

GLOBAL, LOCAL = "full_attention", "sliding_attention"


class Gemma3(Decoder):
    """Gemma 3's text models (arXiv 2503.19786): norms before and behind attention and MLP, five layers with a sliding
    window to one without, each kind with a rotary base of its own, embeddings times the root of the hidden size."""

    family = "gemma3_text"
    published = GEMMA3

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        for not_supported in ("attention_bias", "use_bidirectional_attention"):
            reader.only(not_supported, False, None)
        for softcapping in ("attn_logit_softcapping", "final_logit_softcapping"):
            reader.only(softcapping, None)
        reader.only("hidden_activation", "gelu_pytorch_tanh")
        reader.skip("cache_implementation")
        config = {
            **decoder.keywords(reader),
            **gqa.keywords(reader, bias=False, qk_norm=True, rotary_interleaved=False),
            "activation_func": "gelu",
            "use_te_activation_func": True,  # the tanh form is a module of the spec
            "layernorm_zero_centered_gamma": True,
            "softmax_scale": reader.get("query_pre_attn_scalar") ** -0.5,
            "window_size": ((reader.get("sliding_window") or 1) - 1, 0),
            "window_attn_skip_freq": [int(kind == LOCAL) for kind in _layer_types(reader)],
        }
        if any(config["window_attn_skip_freq"]) and not reader.get("sliding_window"):
            reader.refuse("sliding_window", None, "Layers with a window need its size.")
        return config, {**_rotary(reader), **embeddings.keywords(reader)}

    def layer(self, config: TransformerConfig, is_moe: bool) -> ModuleSpec:
        """A dense layer with norms on both sides of attention and MLP."""
        from slime_plugin_gemma3 import spec

        return spec.layer(config)

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf, qk_norm=True)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = self.published.complete(hf)
        behind = decoder.post_norm_rules("post_attention_layernorm", "post_feedforward_layernorm")
        norms = decoder.norm_rules(mlp="pre_feedforward_layernorm")
        rules = decoder.rules(hf, self.attention_rules(hf), (*mlp.rules(), *behind), norms)
        return WeightMapping(rules, hf["num_hidden_layers"])


def _layer_types(reader: ConfigReader) -> Sequence[str]:
    """Of each layer; without a list every sixth is global, or every `sliding_window_pattern`-th."""
    num_layers = reader.get("num_hidden_layers")
    every = reader.get("sliding_window_pattern") or num_layers
    counted = [LOCAL if (layer + 1) % every else GLOBAL for layer in range(num_layers)]
    kinds: Sequence[str] = reader.get("layer_types", None) or counted
    if len(kinds) != num_layers or not set(kinds) <= {GLOBAL, LOCAL}:
        raise SlimeError(
            f"'layer_types' of {num_layers} layers are {len(kinds)}: {', '.join(sorted(set(kinds)))}",
            where="config.json",
            todo=f"Each layer is {GLOBAL} or {LOCAL}.",
        )
    return kinds


def _rotary(reader: ConfigReader) -> dict[str, Any]:
    """The global layers' rotary embeddings, plain or of positions divided by a factor, as `GPTModel` keywords.

    transformers 5 writes `rope_parameters` by the kind of layer; before, the fields stood alone. Where a file has both,
    `rope_scaling` changes what is said of global layers.
    """
    by_kind, scaling = reader.inside("rope_parameters"), reader.inside("rope_scaling")
    local, found = by_kind.inside(LOCAL), by_kind.inside(GLOBAL)
    base = local.get("rope_theta", reader.get("rope_local_base_freq"))
    if base != LOCAL_BASE:
        todo = f"Supported for local layers: {LOCAL_BASE:g}."
        said = (local, "rope_theta") if local.says("rope_theta") else (reader, "rope_local_base_freq")
        said[0].refuse(said[1], base, todo)
    if _kind(local) != "default":
        local.refuse("rope_type", _kind(local), "Local layers are not scaled.")
    kind, old, otherwise = scaling.get("rope_type", None), scaling.get("type", None), _kind(found)
    if kind is None and old not in (None, otherwise):
        scaling.refuse("type", old, "Write 'rope_type': transformers 5 and engines miss the old name here.")
    kind = kind or otherwise
    if kind not in ("default", "linear"):
        scaling.refuse("rope_type", kind, "Supported: default, linear.")
        scaling.skip()
        found.skip()
    return {
        "position_embedding_type": "rope",
        "rotary_percent": 1.0,
        "rotary_base": scaling.get("rope_theta", found.get("rope_theta", reader.get("rope_theta"))),
        **({"seq_len_interpolation_factor": _factor(scaling, found)} if kind == "linear" else {}),
    }


def _kind(parameters: ConfigReader) -> str:
    old = parameters.get("type", "default")
    return str(parameters.get("rope_type", old))


def _factor(scaling: ConfigReader, found: ConfigReader) -> float:
    return float(scaling.get("factor", None) or found.get("factor"))
