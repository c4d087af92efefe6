"""From the config.json of `qwen2` to Megatron-core and back."""

from __future__ import annotations

from typing import Any

from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.rules import Rules
from slime_megatron.family import Decoder, dense, without_windows
from slime_megatron.transformer import gqa
from slime_plugin_qwen2.published import QWEN2


class Qwen2(Decoder):
    """Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): grouped-query attention with biases on q/k/v, rotate-half
    rotary."""

    family = "qwen2"
    published = QWEN2

    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        reader.only("use_mrope", False)
        without_windows(reader)
        return dense(reader, bias=True)

    def attention_rules(self, hf: HfConfig) -> Rules:
        return gqa.rules_of(hf, bias=True)
