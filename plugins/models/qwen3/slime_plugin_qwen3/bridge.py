"""From the config.json of `qwen3` and `qwen3_moe` to Megatron-core and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import slime_megatron.mixture_of_experts as moe
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import Rules
from slime.models.traits import Traits
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary
from slime_plugin_qwen3.published import QWEN3, QWEN3_MOE

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class Qwen3:
    """Dense Qwen3: grouped-query attention with a norm on each query and key head, rotate-half rotary."""

    family = "qwen3"
    published = QWEN3

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read_dense(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read_dense(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_qwen3 import spec

        return spec.block(config, vp_stage)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = QWEN3.complete(hf)
        return WeightMapping(_rules(hf, mlp.rules()), hf["num_hidden_layers"])


class Qwen3Moe:
    """Qwen3 with softmax-routed experts in every layer, without a shared expert or a correction bias."""

    family = "qwen3_moe"
    published = QWEN3_MOE

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
        hf = QWEN3_MOE.complete(hf)
        experts = moe.rules(shared_expert=False, correction_bias=False)
        return WeightMapping(_rules(hf, experts), hf["num_hidden_layers"], hf[_experts_key(hf)])


def _rules(hf: HfConfig, mlp: Rules) -> Rules:
    """The table around the MLP, which is what the two families differ in."""
    num_heads = hf["num_attention_heads"]
    return (
        *embeddings.rules(hf["vocab_size"]),
        *decoder.norm_rules(),
        *gqa.rules(num_heads, hf["num_key_value_heads"] or num_heads, qk_norm=True),
        *mlp,
        *output.rules(hf["vocab_size"], tied=hf["tie_word_embeddings"]),
    )


def _experts_key(hf: HfConfig) -> str:
    """transformers 5 renames the field when it saves a model."""
    return "num_local_experts" if hf.get("num_local_experts") else "num_experts"


def _read_dense(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, QWEN3)
    config = _decoder(reader)
    return config, _model_kwargs(reader)


def _read_moe(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, QWEN3_MOE)
    reader.only("decoder_sparse_step", 1)
    reader.only("mlp_only_layers", None, [])
    reader.skip("num_experts", "output_router_logits", "router_aux_loss_coef")  # the latter two are of a loss
    config = {**_decoder(reader), **moe.softmax_keywords(reader, experts_key=_experts_key(hf))}
    return config, _model_kwargs(reader)


def _decoder(reader: ConfigReader) -> dict[str, Any]:
    reader.only("use_sliding_window", False)
    reader.skip("max_window_layers", "sliding_window")
    reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
    reader.only("attention_bias", False)
    return {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=False, qk_norm=True, rotary_interleaved=False),
    }


def _model_kwargs(reader: ConfigReader) -> dict[str, Any]:
    """The last part of a config.json; whatever is left unread now is refused."""
    kwargs = {**rotary.keywords(reader, default_percent=1.0, partial=False), **embeddings.keywords(reader)}
    reader.finish()
    return kwargs
