"""The fields of config.json that published classes of `mimo` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Flag, Number, Object, Positive, Published, Size
from slime_megatron.published import WindowConfig


class MimoConfig(WindowConfig):
    """This package's `hf.MimoConfig`, transformers' `Qwen2Config` with one field."""

    vocab_size: Size = 151_936
    hidden_size: Size = 4096
    intermediate_size: Size = 22_016
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 32_768
    num_nextn_predict_layers: Count = 0


class Beside:
    """Read by SGLang's class, or in published folders."""

    attention_bias: Flag = True
    dual_chunk_attention_config: Object | None = None
    head_dim: Size | None = None
    original_num_attention_heads: Size | None = None
    partial_rotary_factor: Positive = 1.0
    scale_emb: Number | None = None
    use_mrope: Flag = False


MIMO = Published("MiMoForCausalLM", MimoConfig, Beside)
