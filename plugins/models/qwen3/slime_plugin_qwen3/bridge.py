"""From the config.json of `qwen3` and `qwen3_moe` to Megatron-core and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import slime_plugin_mixture_of_experts as moe
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import Rules
from slime.models.traits import Traits
from slime_plugin_transformer import decoder, embeddings, gqa, mlp, output, rotary

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class Qwen3:
    """Dense Qwen3: grouped-query attention with a norm on each query and key head, rotate-half rotary."""

    family = "qwen3"

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read_dense(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read_dense(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_qwen3 import spec

        return spec.block(config, vp_stage)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        return WeightMapping(_rules(hf, mlp.rules()), hf["num_hidden_layers"])


class Qwen3Moe:
    """Qwen3 with softmax-routed experts in every layer, without a shared expert or a correction bias."""

    family = "qwen3_moe"

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read_moe(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read_moe(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_qwen3 import spec

        return spec.block(config, vp_stage)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return moe.traits(self.transformer_config(hf))

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        experts = moe.rules(shared_expert=False, correction_bias=False)
        return WeightMapping(_rules(hf, experts), hf["num_hidden_layers"], hf[_experts_key(hf)])


def _rules(hf: HfConfig, mlp: Rules) -> Rules:
    """The table around the MLP, which is what the two families differ in."""
    return (
        *embeddings.rules(hf["vocab_size"]),
        *decoder.norm_rules(),
        *gqa.rules(hf["num_attention_heads"], hf["num_key_value_heads"], qk_norm=True),
        *mlp,
        *output.rules(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
    )


def _experts_key(hf: HfConfig) -> str:
    """transformers 5 renames the field when it saves a model."""
    return "num_local_experts" if "num_local_experts" in hf else "num_experts"


def _read_dense(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf)
    config = _decoder(reader)
    return config, _model_kwargs(reader)


def _read_moe(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf)
    reader.only("decoder_sparse_step", 1)
    reader.only("mlp_only_layers", None, [])
    for loss_of_transformers in ("output_router_logits", "router_aux_loss_coef"):
        reader.get(loss_of_transformers, None)
    config = {**_decoder(reader), **moe.softmax_keywords(reader, experts_key=_experts_key(hf))}
    return config, _model_kwargs(reader)


def _decoder(reader: ConfigReader) -> dict[str, Any]:
    reader.only("use_sliding_window", False)
    for window in ("max_window_layers", "sliding_window"):
        reader.get(window, None)
    reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
    reader.only("attention_bias", False)
    return {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=False, qk_norm=True, rotary_interleaved=False),
    }


def _model_kwargs(reader: ConfigReader) -> dict[str, Any]:
    """The last part of a config.json; whatever is left unread now is refused."""
    kwargs = {**rotary.keywords(reader, default_percent=1.0), **embeddings.keywords(reader)}
    reader.finish()
    return kwargs
