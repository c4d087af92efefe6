"""The fields of config.json that published classes of `llama` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Flag, Positive, Published, Size, Tokens
from slime_megatron.published import DecoderConfig


class LlamaConfig(DecoderConfig):
    """transformers' `LlamaConfig`."""

    vocab_size: Size = 32_000
    hidden_size: Size = 4096
    intermediate_size: Size = 11_008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = None
    max_position_embeddings: Size = 2048
    bos_token_id: Tokens = 1
    eos_token_id: Tokens = 2
    pretraining_tp: Count | None = 1
    attention_bias: Flag = False
    mlp_bias: Flag = False
    head_dim: Size | None = None


class Beside:
    """Read by SGLang's class, or written by converters."""

    bias: Flag = False
    original_max_position_embeddings: Size | None = None
    partial_rotary_factor: Positive = 1.0
    rope_interleaved: Flag = False
    rope_is_neox_style: Flag = True
    target_hidden_size: Size | None = None


LLAMA = Published("LlamaForCausalLM", LlamaConfig, Beside)
