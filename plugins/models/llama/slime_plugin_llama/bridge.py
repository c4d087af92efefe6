"""From the config.json of `llama` to Megatron-core and back."""

from __future__ import annotations

from typing import Any

from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules
from slime_megatron.family import Decoder, dense
from slime_megatron.transformer import gqa
from slime_plugin_llama.published import LLAMA


class Llama(Decoder):
    """Llama 2 and 3 (arXiv 2307.09288, 2407.21783): grouped-query attention without biases, rotate-half rotary."""

    family = "llama"
    published = LLAMA

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        for bias in ("attention_bias", "mlp_bias"):
            reader.only(bias, False)
        reader.only("rope_interleaved", False)
        reader.skip("is_llama_config", "pretraining_tp", "transformers.js_config")
        return dense(reader)

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf)
