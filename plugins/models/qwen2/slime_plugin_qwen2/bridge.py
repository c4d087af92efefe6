"""From the config.json of `qwen2` to Megatron-core and back."""

from __future__ import annotations

from typing import Any

from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules
from slime_megatron.family import Decoder
from slime_megatron.transformer import decoder, embeddings, gqa, rotary
from slime_plugin_qwen2.published import QWEN2


class Qwen2(Decoder):
    """Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): grouped-query attention with biases on q/k/v, rotate-half
    rotary."""

    family = "qwen2"
    published = QWEN2

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        reader.only("use_sliding_window", False)
        reader.only("use_mrope", False)
        reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
        reader.skip("max_window_layers", "sliding_window")
        attention = gqa.keywords(reader, bias=True, qk_norm=False, rotary_interleaved=False)
        turning = rotary.keywords(reader, default_percent=1.0, partial=False)
        return {**decoder.keywords(reader), **attention}, {**turning, **embeddings.keywords(reader)}

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf, bias=True)
