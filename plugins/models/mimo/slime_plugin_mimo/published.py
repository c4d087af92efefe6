"""The fields of config.json that published classes of `mimo` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Flag, Published
from slime_megatron.published import BesideWindows, WindowConfig


class MimoConfig(WindowConfig):
    """This package's `hf.MimoConfig`, transformers' `Qwen2Config` with one field."""

    num_nextn_predict_layers: Count = 0


class Beside(BesideWindows):
    attention_bias: Flag = True


MIMO = Published("MiMoForCausalLM", MimoConfig, Beside)
