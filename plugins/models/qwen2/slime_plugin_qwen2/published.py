"""The fields of config.json that published classes of `qwen2` read, by name."""

from __future__ import annotations

from slime.models.published import Published
from slime_megatron.published import BesideWindows, WindowConfig

QWEN2 = Published("Qwen2ForCausalLM", WindowConfig, BesideWindows)
