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
    """The same of decoders that might have sliding windows in some layers."""

    use_sliding_window: Flag = False
    sliding_window: Size | None = 4096
    max_window_layers: Count = 28
    layer_types: Texts | None = None


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
