"""The fields of config.json that published classes of `deepseek_v3` and `deepseek_v32` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Flag, Positive, Published, Size, Texts
from slime_megatron.published import BesideIndexers, BesideLatentExperts, LatentExpertsConfig


class DeepseekConfig(LatentExpertsConfig):
    """What both of transformers' classes have alike."""

    vocab_size: Size = 129_280
    hidden_size: Size = 7168
    intermediate_size: Size = 18_432
    moe_intermediate_size: Size = 2048
    num_hidden_layers: Size = 61
    num_attention_heads: Size = 128
    n_routed_experts: Size = 256
    routed_scaling_factor: Positive = 2.5
    v_head_dim: Size = 128
    qk_nope_head_dim: Size = 128
    n_group: Size = 8
    topk_group: Size = 4
    num_experts_per_tok: Size = 8
    first_k_dense_replace: Count = 3


class DeepseekV3Config(DeepseekConfig):
    """transformers' `DeepseekV3Config`."""

    num_key_value_heads: Size | None = 128
    q_lora_rank: Size | None = 1536
    max_position_embeddings: Size = 4096
    pretraining_tp: Count | None = 1
    rope_interleave: Flag = True


class DeepseekV32Config(DeepseekConfig):
    """transformers' `DeepseekV32Config`."""

    num_key_value_heads: Size = 128
    q_lora_rank: Size = 1536
    max_position_embeddings: Size = 163_840
    mlp_layer_types: Texts | None = None
    index_topk: Size = 2048
    index_head_dim: Size = 128
    index_n_heads: Size = 64
    mlp_bias: Flag = False
    num_experts: Size = 256
    head_dim: Size = 64
    layer_types: Texts | None = None


class BesideV3(BesideLatentExperts):
    head_dim: Size | None = None
    index_topk: Size | None = None


DEEPSEEK_V3 = Published("DeepseekV3ForCausalLM", DeepseekV3Config, BesideV3)
DEEPSEEK_V32 = Published("DeepseekV32ForCausalLM", DeepseekV32Config, BesideIndexers)
