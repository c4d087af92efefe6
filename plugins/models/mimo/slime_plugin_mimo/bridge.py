"""From the config.json of `mimo` to Megatron-core and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import slime_megatron.multi_token_prediction as mtp
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.traits import Traits
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary
from slime_plugin_mimo.published import MIMO

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

_MTP = "model.mtp_layers.0."
_MTP_MODULES = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "final_layernorm": "final_layernorm",
}
"""The checkpoint's names by Megatron's."""


class Mimo:
    """MiMo (arXiv 2505.07608): Qwen2's grouped-query attention with biases on q/k/v, rotate-half rotary."""

    family = "mimo"
    published = MIMO

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_mimo import spec

        return spec.block(config, vp_stage)

    def mtp_spec(self, config: TransformerConfig) -> ModuleSpec:
        from slime_plugin_mimo import spec

        return spec.prediction(config)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return mtp.traits(hf, self.mtp_spec)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = MIMO.complete(hf)
        num_heads = hf["num_attention_heads"]
        attention = gqa.rules(num_heads, hf["num_key_value_heads"] or num_heads, bias=True)
        layer = (*decoder.norm_rules(), *attention, *mlp.rules())
        prediction = mtp.rules(layer, _MTP, modules=_MTP_MODULES)
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *layer,
            *output.rules(hf["vocab_size"], tied=hf["tie_word_embeddings"]),
        )
        if hf.get("num_nextn_predict_layers"):
            return WeightMapping((*rules, *prediction), hf["num_hidden_layers"])
        ignored = frozenset(name for rule in prediction for name in rule.hf)
        return WeightMapping(rules, hf["num_hidden_layers"], ignored=ignored)


def _read(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, MIMO)
    reader.only("use_sliding_window", False)
    reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
    reader.only("attention_bias", True)
    reader.only("use_mrope", False)
    reader.skip("max_window_layers", "sliding_window")
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=True, qk_norm=False, rotary_interleaved=False),
        **mtp.keywords(reader),
    }
    kwargs = {**rotary.keywords(reader, default_percent=1.0, partial=False), **embeddings.keywords(reader)}
    reader.finish()
    return config, kwargs
