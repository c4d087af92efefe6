"""The fields of config.json that published classes of `gemma3_text` read, by name."""

from __future__ import annotations

from slime.models.published import Flag, Number, Object, Positive, Published, Size, Text, Texts, Tokens

LOCAL_BASE = 10_000.0
"""Of the rotary embeddings in layers with a sliding window, in every Gemma 3."""


class Gemma3TextConfig:
    """transformers' `Gemma3TextConfig`."""

    vocab_size: Size = 262_208
    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: Size = 4
    head_dim: Size = 256
    hidden_activation: Text = "gelu_pytorch_tanh"
    max_position_embeddings: Size = 131_072
    initializer_range: Number = 0.02
    rms_norm_eps: Positive = 1e-06
    use_cache: Flag = True
    pad_token_id: Tokens = 0
    eos_token_id: Tokens = 1
    bos_token_id: Tokens = 2
    tie_word_embeddings: Flag = True
    rope_parameters: Object | None = None
    attention_bias: Flag = False
    attention_dropout: Number = 0.0
    query_pre_attn_scalar: Size = 256
    sliding_window: Size | None = 4096
    layer_types: Texts | None = None
    final_logit_softcapping: Positive | None = None
    attn_logit_softcapping: Positive | None = None
    use_bidirectional_attention: Flag = False


class Beside:
    """Read by transformers' class of older files, by SGLang's class, or in published folders."""

    cache_implementation: Text | None = None
    partial_rotary_factor: Positive = 1.0
    rope_is_neox_style: Flag = True
    rope_local_base_freq: Positive = LOCAL_BASE
    rope_theta: Positive = 1_000_000.0
    sliding_window_pattern: Size | None = 6


GEMMA3 = Published("Gemma3ForCausalLM", Gemma3TextConfig, Beside)
