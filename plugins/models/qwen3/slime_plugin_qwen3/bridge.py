"""From the config.json of `qwen3` and `qwen3_moe` to Megatron-core and back."""

from __future__ import annotations

from typing import Any

import slime_megatron.mixture_of_experts as moe
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import Rules
from slime.models.traits import Traits
from slime_megatron.family import Decoder, dense, without_windows
from slime_megatron.transformer import decoder, gqa
from slime_plugin_qwen3.published import QWEN3, QWEN3_MOE


class Qwen3(Decoder):
    """Dense Qwen3: grouped-query attention with a norm on each query and key head, rotate-half rotary."""

    family = "qwen3"
    published = QWEN3

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        reader.only("attention_bias", False)
        without_windows(reader)
        return dense(reader, qk_norm=True)

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf, qk_norm=True)


class Qwen3Moe(Qwen3):
    """Qwen3 with softmax-routed experts in every layer, without a shared expert or a correction bias."""

    family = "qwen3_moe"
    published = QWEN3_MOE

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        reader.only("decoder_sparse_step", 1)
        reader.only("mlp_only_layers", None, [])
        reader.skip("num_experts", "output_router_logits", "router_aux_loss_coef")  # the latter two are of a loss
        config, kwargs = super().read(reader)
        renamed = reader.get("num_local_experts", None)
        experts = moe.softmax_keywords(reader, experts_key="num_local_experts" if renamed else "num_experts")
        return {**config, **experts}, kwargs

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return moe.traits(self.transformer_config(hf))

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = self.published.complete(hf)
        experts = moe.rules(shared_expert=False, correction_bias=False)
        rules = decoder.rules(hf, self.attention_rules(hf), experts)
        # transformers 5 renames the field when it saves a model.
        return WeightMapping(rules, hf["num_hidden_layers"], hf["num_local_experts"] or hf["num_experts"])
