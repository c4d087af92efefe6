"""The fields of config.json that published classes of `glm_moe_dsa` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Flag, Number, Object, Positive, Published, Size, Text, Texts, Tokens


class GlmMoeDsaConfig:
    """transformers' `GlmMoeDsaConfig`."""

    vocab_size: Size = 154_880
    hidden_size: Size = 6144
    intermediate_size: Size = 12_288
    moe_intermediate_size: Size = 2048
    num_hidden_layers: Size = 78
    num_attention_heads: Size = 64
    num_key_value_heads: Size = 64
    n_shared_experts: Count = 1
    n_routed_experts: Size = 256
    routed_scaling_factor: Positive = 2.5
    kv_lora_rank: Size = 512
    q_lora_rank: Size = 2048
    qk_rope_head_dim: Size = 64
    v_head_dim: Size = 256
    qk_nope_head_dim: Size = 192
    n_group: Size = 1
    topk_group: Size = 1
    num_experts_per_tok: Size = 8
    norm_topk_prob: Flag = True
    hidden_act: Text = "silu"
    max_position_embeddings: Size = 202_752
    initializer_range: Number = 0.02
    rms_norm_eps: Positive = 1e-05
    use_cache: Flag = True
    pad_token_id: Tokens = None
    bos_token_id: Tokens = 0
    eos_token_id: Tokens = 1
    tie_word_embeddings: Flag = False
    rope_parameters: Object | None = None
    mlp_layer_types: Texts | None = None
    attention_bias: Flag = False
    attention_dropout: Number = 0.0
    index_topk: Size = 2048
    index_head_dim: Size = 128
    index_n_heads: Size = 32
    mlp_bias: Flag = False
    num_experts: Size = 256
    head_dim: Size = 64
    first_k_dense_replace: Count = 3
    layer_types: Texts | None = None
    indexer_types: Texts | None = None


class Beside:
    """Read by transformers' class and SGLang's, or in published folders."""

    cli_factor: Size = 1
    index_topk_freq: Size | None = None
    index_skip_topk_offset: Size | None = None
    index_topk_pattern: Text | Texts | None = None
    indexer_rope_interleave: Flag = False
    llama_4_scaling: Object | None = None
    moe_layer_freq: Size = 1
    num_hash_layers: Count = 0
    num_local_experts: Size | None = None
    num_nextn_predict_layers: Count | None = 0
    partial_rotary_factor: Positive = 1.0
    qk_head_dim: Size | None = None
    rope_interleave: Flag = True
    routing_method_type: Count | None = None
    scoring_func: Text = "sigmoid"
    swiglu_limit: Number | None = None
    topk_method: Text = "noaux_tc"
    use_qk_norm: Flag = False


GLM_MOE_DSA = Published("GlmMoeDsaForCausalLM", GlmMoeDsaConfig, Beside)
