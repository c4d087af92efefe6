"""The fields of config.json that published classes of `glm_moe_dsa` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Flag, Positive, Published, Size, Texts
from slime_megatron.published import BesideIndexers, LatentExpertsConfig


class GlmMoeDsaConfig(LatentExpertsConfig):
    """transformers' `GlmMoeDsaConfig`."""

    vocab_size: Size = 154_880
    hidden_size: Size = 6144
    intermediate_size: Size = 12_288
    moe_intermediate_size: Size = 2048
    num_hidden_layers: Size = 78
    num_attention_heads: Size = 64
    num_key_value_heads: Size = 64
    n_routed_experts: Size = 256
    routed_scaling_factor: Positive = 2.5
    q_lora_rank: Size = 2048
    v_head_dim: Size = 256
    qk_nope_head_dim: Size = 192
    n_group: Size = 1
    topk_group: Size = 1
    num_experts_per_tok: Size = 8
    max_position_embeddings: Size = 202_752
    rms_norm_eps: Positive = 1e-05
    mlp_layer_types: Texts | None = None
    index_topk: Size = 2048
    index_head_dim: Size = 128
    index_n_heads: Size = 32
    mlp_bias: Flag = False
    num_experts: Size = 256
    head_dim: Size = 64
    first_k_dense_replace: Count = 3
    layer_types: Texts | None = None
    indexer_types: Texts | None = None


class Beside(BesideIndexers):
    use_qk_norm: Flag = False


GLM_MOE_DSA = Published("GlmMoeDsaForCausalLM", GlmMoeDsaConfig, Beside)
