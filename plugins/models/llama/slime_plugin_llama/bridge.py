"""From the config.json of `llama` to Megatron-core and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary
from slime_plugin_llama.published import LLAMA

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class Llama:
    """Llama 2 and 3 (arXiv 2307.09288, 2407.21783): grouped-query attention without biases, rotate-half rotary."""

    family = "llama"
    published = LLAMA

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_llama import spec

        return spec.block(config, vp_stage)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = LLAMA.complete(hf)
        num_heads = hf["num_attention_heads"]
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *decoder.norm_rules(),
            *gqa.rules(num_heads, hf["num_key_value_heads"] or num_heads),
            *mlp.rules(),
            *output.rules(hf["vocab_size"], tied=hf["tie_word_embeddings"]),
        )
        return WeightMapping(rules, hf["num_hidden_layers"])


def _read(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, LLAMA)
    for bias in ("attention_bias", "mlp_bias"):
        reader.only(bias, False)
    reader.only("rope_interleaved", False)
    reader.skip("is_llama_config", "pretraining_tp", "transformers.js_config")
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=False, qk_norm=False, rotary_interleaved=False),
    }
    kwargs = {**rotary.keywords(reader, default_percent=1.0, partial=False), **embeddings.keywords(reader)}
    reader.finish()
    return config, kwargs
