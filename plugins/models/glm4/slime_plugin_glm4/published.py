"""The fields of config.json that published classes of `glm4`, `glm4_moe` and `glm4_moe_lite` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Flag, Object, Positive, Published, Size, Text, Texts, Tokens
from slime_megatron.published import DecoderConfig, LatentExpertsConfig


class Glm4Config(DecoderConfig):
    """transformers' `Glm4Config`."""

    vocab_size: Size = 151_552
    hidden_size: Size = 4096
    intermediate_size: Size = 13_696
    num_hidden_layers: Size = 40
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 2
    head_dim: Size = 128
    max_position_embeddings: Size = 131_072
    rms_norm_eps: Positive = 1.5625e-07
    pad_token_id: Tokens = 151_329
    attention_bias: Flag = True


class Glm4MoeConfig(DecoderConfig):
    """transformers' `Glm4MoeConfig`."""

    vocab_size: Size = 151_552
    hidden_size: Size = 4096
    intermediate_size: Size = 10_944
    num_hidden_layers: Size = 46
    num_attention_heads: Size = 96
    num_key_value_heads: Size = 8
    max_position_embeddings: Size = 131_072
    rms_norm_eps: Positive = 1e-05
    attention_bias: Flag = False
    moe_intermediate_size: Size = 1408
    num_experts_per_tok: Size = 8
    n_shared_experts: Count = 1
    n_routed_experts: Size = 128
    routed_scaling_factor: Positive = 1.0
    n_group: Size = 1
    topk_group: Size = 1
    first_k_dense_replace: Count = 1
    norm_topk_prob: Flag = True
    use_qk_norm: Flag = False


class Glm4MoeLiteConfig(LatentExpertsConfig):
    """transformers' `Glm4MoeLiteConfig`."""

    vocab_size: Size = 154_880
    hidden_size: Size = 2048
    intermediate_size: Size = 10_240
    moe_intermediate_size: Size = 1536
    num_hidden_layers: Size = 47
    num_attention_heads: Size = 20
    num_key_value_heads: Size = 20
    n_routed_experts: Size = 64
    routed_scaling_factor: Positive = 1.8
    q_lora_rank: Size | None = 768
    v_head_dim: Size = 256
    qk_nope_head_dim: Size = 192
    n_group: Size = 1
    topk_group: Size = 1
    num_experts_per_tok: Size = 4
    max_position_embeddings: Size = 202_752
    rms_norm_eps: Positive = 1e-05
    pretraining_tp: Count = 1
    rope_interleave: Flag = True
    mlp_layer_types: Texts | None = None


class Beside:
    """Read by transformers' class, by SGLang's, or in published folders."""

    dual_chunk_attention_config: Object | None = None
    partial_rotary_factor: Positive = 0.5


class BesideMoe:
    head_dim: Size | None = None
    num_nextn_predict_layers: Count | None = 0
    num_local_experts: Size | None = None
    partial_rotary_factor: Positive = 0.5


class BesideLite:
    first_k_dense_replace: Count
    head_dim: Size | None = None
    moe_layer_freq: Size = 1
    num_nextn_predict_layers: Count | None = 0
    num_local_experts: Size | None = None
    partial_rotary_factor: Positive = 1.0
    qk_head_dim: Size | None = None
    topk_method: Text = "noaux_tc"


GLM4 = Published("Glm4ForCausalLM", Glm4Config, Beside)
GLM4_MOE = Published("Glm4MoeForCausalLM", Glm4MoeConfig, BesideMoe)
GLM4_MOE_LITE = Published("Glm4MoeLiteForCausalLM", Glm4MoeLiteConfig, BesideLite)
