"""From the config.json of `qwen2` to Megatron-core and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary
from slime_plugin_qwen2.published import QWEN2

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class Qwen2:
    """Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): grouped-query attention with biases on q/k/v, rotate-half
    rotary."""

    family = "qwen2"
    published = QWEN2

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return _read(hf)[1]

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_plugin_qwen2 import spec

        return spec.block(config, vp_stage)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = QWEN2.complete(hf)
        num_heads = hf["num_attention_heads"]
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *decoder.norm_rules(),
            *gqa.rules(num_heads, hf["num_key_value_heads"] or num_heads, bias=True),
            *mlp.rules(),
            *output.rules(hf["vocab_size"], tied=hf["tie_word_embeddings"]),
        )
        return WeightMapping(rules, hf["num_hidden_layers"])


def _read(hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = ConfigReader(hf, QWEN2)
    reader.only("use_sliding_window", False)
    reader.only("use_mrope", False)
    reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
    reader.skip("max_window_layers", "sliding_window")
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=True, qk_norm=False, rotary_interleaved=False),
    }
    kwargs = {**rotary.keywords(reader, default_percent=1.0, partial=False), **embeddings.keywords(reader)}
    reader.finish()
    return config, kwargs
