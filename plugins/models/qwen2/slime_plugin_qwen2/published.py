"""The fields of config.json that published classes of `qwen2` read, by name."""

from __future__ import annotations

from slime.models.published import Flag, Number, Object, Positive, Published, Size
from slime_megatron.published import WindowConfig


class Qwen2Config(WindowConfig):
    """transformers' `Qwen2Config`."""

    vocab_size: Size = 151_936
    hidden_size: Size = 4096
    intermediate_size: Size = 22_016
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 32_768


class Beside:
    """Read by SGLang's class and by transformers' model, or in published folders."""

    dual_chunk_attention_config: Object | None = None
    head_dim: Size | None = None
    original_num_attention_heads: Size | None = None
    partial_rotary_factor: Positive = 1.0
    scale_emb: Number | None = None
    use_mrope: Flag = False


QWEN2 = Published("Qwen2ForCausalLM", Qwen2Config, Beside)
