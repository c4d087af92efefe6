"""Fields of config.json that families share, for their tables (`slime.models.published`). No torch."""

from __future__ import annotations

from slime.models.published import Count, Flag, Number, Object, Positive, Size, Text, Texts, Tokens


class DecoderConfig:
    """What transformers' config classes of decoders have alike; a family states what it has otherwise."""

    hidden_act: Text = "silu"
    initializer_range: Number = 0.02
    rms_norm_eps: Positive = 1e-06
    use_cache: Flag = True
    tie_word_embeddings: Flag = False
    rope_parameters: Object | None = None
    attention_dropout: Number = 0.0
    pad_token_id: Tokens = None
    bos_token_id: Tokens = None
    eos_token_id: Tokens = None


class WindowConfig(DecoderConfig):
    """The same of decoders that might have sliding windows in some layers, with the sizes that they all begin with."""

    vocab_size: Size = 151_936
    hidden_size: Size = 4096
    intermediate_size: Size = 22_016
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 32_768
    use_sliding_window: Flag = False
    sliding_window: Size | None = 4096
    max_window_layers: Count = 28
    layer_types: Texts | None = None


class BesideWindows:
    """What SGLang's classes of such decoders and transformers' models read beside, or published folders have."""

    dual_chunk_attention_config: Object | None = None
    head_dim: Size | None = None
    original_num_attention_heads: Size | None = None
    partial_rotary_factor: Positive = 1.0
    scale_emb: Number | None = None
    use_mrope: Flag = False


class LatentExpertsConfig(DecoderConfig):
    """The same of decoders with latent attention and experts."""

    n_shared_experts: Count = 1
    kv_lora_rank: Size = 512
    qk_rope_head_dim: Size = 64
    norm_topk_prob: Flag = True
    attention_bias: Flag = False
    bos_token_id: Tokens = 0
    eos_token_id: Tokens = 1


class BesideLatentExperts:
    """What SGLang's classes of such decoders read beside, or published folders have."""

    cli_factor: Size = 1
    indexer_rope_interleave: Flag = False
    llama_4_scaling: Object | None = None
    moe_layer_freq: Size = 1
    num_hash_layers: Count = 0
    num_local_experts: Size | None = None
    num_nextn_predict_layers: Count | None = 0
    partial_rotary_factor: Positive = 1.0
    qk_head_dim: Size | None = None
    routing_method_type: Count | None = None
    scoring_func: Text = "sigmoid"
    swiglu_limit: Number | None = None
    topk_method: Text = "noaux_tc"


class BesideIndexers(BesideLatentExperts):
    """The same where layers have indexers: which of them, SGLang's classes would read."""

    index_topk_freq: Size | None = None
    index_skip_topk_offset: Size | None = None
    index_topk_pattern: Text | Texts | None = None
    rope_interleave: Flag = True
