"""From the config.json of `mimo` to Megatron-core and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import slime_megatron.multi_token_prediction as mtp
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import Rules
from slime.models.traits import Traits
from slime_megatron.family import Decoder, dense, without_windows
from slime_megatron.transformer import decoder, gqa, mlp
from slime_plugin_mimo.published import MIMO

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

_MTP = "model.mtp_layers.0."
_MTP_MODULES = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "final_layernorm": "final_layernorm",
}
"""The checkpoint's names by Megatron's."""


class Mimo(Decoder):
    """MiMo (arXiv 2505.07608): Qwen2's grouped-query attention with biases on q/k/v, rotate-half rotary."""

    family = "mimo"
    published = MIMO

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        reader.only("attention_bias", True)
        reader.only("use_mrope", False)
        without_windows(reader)
        config, kwargs = dense(reader, bias=True)
        return {**config, **mtp.keywords(reader)}, kwargs

    def mtp_spec(self, config: TransformerConfig) -> ModuleSpec:
        """The prediction layer, whose projection takes the hidden state first."""
        from slime_megatron.multi_token_prediction.module import mtp_layer

        return mtp_layer(config, self.layer(config, False), hidden_first=True)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return mtp.traits(hf, self.mtp_spec)

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf, bias=True)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        mapping = super().weight_mapping(hf)
        hf = self.published.complete(hf)
        layer = (*decoder.norm_rules(), *self.attention_rules(hf), *mlp.rules())
        prediction = mtp.rules(layer, _MTP, modules=_MTP_MODULES)
        if hf["num_nextn_predict_layers"]:
            return replace(mapping, rules=(*mapping.rules, *prediction))
        return replace(mapping, ignored=frozenset(name for rule in prediction for name in rule.hf))
