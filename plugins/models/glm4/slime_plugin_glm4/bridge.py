"""From the config.json of `glm4`, `glm4_moe` and `glm4_moe_lite` to Megatron-core and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import slime_megatron.latent_attention as mla
import slime_megatron.mixture_of_experts as moe
import slime_megatron.multi_token_prediction as mtp
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.traits import Traits
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary
from slime_plugin_glm4.published import GLM4, GLM4_MOE, GLM4_MOE_LITE

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class Glm4:
    """Dense GLM-4: sandwich norms, fused gate and up, biases on q/k/v, interleaved rotary on half of each head."""

    family = "glm4"
    published = GLM4

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read_dense(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read_dense(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_glm4 import spec

        return spec.dense_block(config, vp_stage)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = GLM4.complete(hf)
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *decoder.norm_rules(),
            *decoder.post_norm_rules(),
            *gqa.rules(hf["num_attention_heads"], hf["num_key_value_heads"], bias=hf["attention_bias"]),
            *mlp.fused_rules(),
            *output.rules(hf["vocab_size"], tied=hf["tie_word_embeddings"]),
        )
        return WeightMapping(rules, hf["num_hidden_layers"])


class Glm4Moe:
    """GLM-4.5 and later: dense layers, then experts with sigmoid routing, a correction bias and a shared expert."""

    family = "glm4_moe"
    published = GLM4_MOE

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read_moe(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read_moe(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_glm4 import spec

        return spec.moe_block(config, vp_stage)

    def mtp_spec(self, config: TransformerConfig) -> ModuleSpec:
        from slime_plugin_glm4 import spec

        return spec.moe_prediction(config)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return (*mtp.traits(hf, self.mtp_spec), *moe.traits(self.transformer_config(hf)))

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = GLM4_MOE.complete(hf)
        attention = gqa.rules(
            hf["num_attention_heads"],
            hf["num_key_value_heads"],
            bias=hf["attention_bias"],
            qk_norm=hf["use_qk_norm"],
        )
        return mtp.moe_mapping(hf, attention)

    def engine_problems(self, hf: HfConfig, sglang: Mapping[str, Any]) -> Sequence[str]:
        if sglang.get("ep_num_redundant_experts"):
            return ["SGLang builds the layers of glm4_moe without room for ep_num_redundant_experts: leave it out"]
        return []


class Glm4MoeLite:
    """GLM-4.7-Flash: the experts of GLM-4.5 behind multi-head latent attention.

    transformers normalises the two latents with an epsilon of 1e-6 whatever config.json says; engines, and the trainer
    with them, use `rms_norm_eps`.
    """

    family = "glm4_moe_lite"
    published = GLM4_MOE_LITE

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read_latent_moe(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read_latent_moe(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_glm4 import spec

        return spec.latent_moe_block(config, vp_stage)

    def mtp_spec(self, config: TransformerConfig) -> ModuleSpec:
        from slime_plugin_glm4 import spec

        return spec.latent_moe_prediction(config)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return (*mtp.traits(hf, self.mtp_spec), *moe.traits(self.transformer_config(hf)))

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = GLM4_MOE_LITE.complete(hf)
        return mtp.moe_mapping(hf, mla.rules(q_lora=hf["q_lora_rank"] is not None))


def _read_dense(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, GLM4)
    bias = reader.get("attention_bias")
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=bias, qk_norm=False, rotary_interleaved=True),
    }
    return config, _model_kwargs(reader)


def _read_moe(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, GLM4_MOE)
    bias, qk_norm = reader.get("attention_bias"), reader.get("use_qk_norm")
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=bias, qk_norm=qk_norm, rotary_interleaved=False),
        **moe.sigmoid_keywords(reader),
        **mtp.keywords(reader),
    }
    return config, _model_kwargs(reader)


def _read_latent_moe(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, GLM4_MOE_LITE)
    reader.skip("pretraining_tp")  # says how the checkpoint was trained
    reader.only("head_dim", reader.get("qk_rope_head_dim"), None)
    if reader.get("mlp_layer_types") is None and (num_dense := reader.get("first_k_dense_replace")) != 1:
        reader.refuse("first_k_dense_replace", num_dense, "Without 'mlp_layer_types' the published class has 1.")
    config = {
        **decoder.keywords(reader),
        **mla.keywords(reader),
        **moe.sigmoid_keywords(reader),
        **mtp.keywords(reader),
    }
    kwargs = embeddings.keywords(reader)
    reader.finish()
    return config, kwargs


def _model_kwargs(reader: ConfigReader) -> dict[str, Any]:
    """The last part of a config.json; whatever is left unread now is refused."""
    kwargs = {**rotary.keywords(reader, default_percent=0.5), **embeddings.keywords(reader)}
    reader.finish()
    return kwargs
