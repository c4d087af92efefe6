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
from slime.models.rules import Rules
from slime_megatron.family import Decoder, ExpertDecoder
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, rotary
from slime_plugin_glm4.published import GLM4, GLM4_MOE, GLM4_MOE_LITE

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig


class Glm4(Decoder):
    """Dense GLM-4: sandwich norms, fused gate and up, biases on q/k/v, interleaved rotary on half of each head."""

    family = "glm4"
    published = GLM4

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        bias = reader.get("attention_bias")
        attention = gqa.keywords(reader, bias=bias, qk_norm=False, rotary_interleaved=True)
        return {**decoder.keywords(reader), **attention}, _model_kwargs(reader)

    def layer(self, config: TransformerConfig, is_moe: bool) -> ModuleSpec:
        """Attention and MLP, whose outputs have norms of their own."""
        from slime_megatron.transformer import specs

        attention, mlp = specs.gqa(config, post_norm=True), specs.gated_mlp(config, post_norm=True)
        return specs.transformer_layer(config, attention=attention, mlp=mlp)

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf, bias=hf["attention_bias"])

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = self.published.complete(hf)
        norms = (*decoder.norm_rules(), *decoder.post_norm_rules())
        rules = decoder.rules(hf, self.attention_rules(hf), mlp.fused_rules(), norms)
        return WeightMapping(rules, hf["num_hidden_layers"])


class Glm4Moe(ExpertDecoder):
    """GLM-4.5 and later: dense layers, then experts with sigmoid routing, a correction bias and a shared expert."""

    family = "glm4_moe"
    published = GLM4_MOE

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        bias, qk_norm = reader.get("attention_bias"), reader.get("use_qk_norm")
        attention = gqa.keywords(reader, bias=bias, qk_norm=qk_norm, rotary_interleaved=False)
        return {**decoder.keywords(reader), **attention, **_experts(reader)}, _model_kwargs(reader)

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf, bias=hf["attention_bias"], qk_norm=hf["use_qk_norm"])

    def engine_problems(self, hf: HfConfig, sglang: Mapping[str, Any]) -> Sequence[str]:
        if sglang.get("ep_num_redundant_experts"):
            return ["SGLang builds the layers of glm4_moe without room for ep_num_redundant_experts: leave it out"]
        return []


class Glm4MoeLite(ExpertDecoder):
    """GLM-4.7-Flash: the experts of GLM-4.5 behind multi-head latent attention.

    transformers normalises the two latents with an epsilon of 1e-6 whatever config.json says; engines, and the trainer
    with them, use `rms_norm_eps`.
    """

    family = "glm4_moe_lite"
    published = GLM4_MOE_LITE

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        reader.skip("pretraining_tp")  # says how the checkpoint was trained
        reader.only("head_dim", reader.get("qk_rope_head_dim"), None)
        if reader.get("mlp_layer_types") is None and (num_dense := reader.get("first_k_dense_replace")) != 1:
            reader.refuse("first_k_dense_replace", num_dense, "Without 'mlp_layer_types' the published class has 1.")
        config = {**decoder.keywords(reader), **mla.keywords(reader), **_experts(reader)}
        return config, embeddings.keywords(reader)


def _experts(reader: ConfigReader) -> dict[str, Any]:
    return {**moe.sigmoid_keywords(reader), **mtp.keywords(reader)}


def _model_kwargs(reader: ConfigReader) -> dict[str, Any]:
    return {**rotary.keywords(reader, default_percent=0.5), **embeddings.keywords(reader)}
