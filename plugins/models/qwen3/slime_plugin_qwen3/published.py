"""The fields of config.json that published classes of `qwen3` and `qwen3_moe` read, by name."""

from __future__ import annotations

from slime.models.published import Count, Counts, Flag, Number, Object, Positive, Published, Size, Texts
from slime_megatron.published import DecoderConfig, WindowConfig


class Qwen3Config(WindowConfig):
    """transformers' `Qwen3Config`."""

    head_dim: Size = 128
    attention_bias: Flag = False


class Qwen3MoeConfig(DecoderConfig):
    """transformers' `Qwen3MoeConfig`."""

    vocab_size: Size = 151_936
    hidden_size: Size = 2048
    intermediate_size: Size = 6144
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 4
    max_position_embeddings: Size = 32_768
    attention_bias: Flag = False
    use_sliding_window: Flag = False
    sliding_window: Size | None = 4096
    decoder_sparse_step: Size = 1
    moe_intermediate_size: Size = 768
    num_experts_per_tok: Size = 8
    num_experts: Size = 128
    norm_topk_prob: Flag = False
    output_router_logits: Flag = False
    router_aux_loss_coef: Number = 0.001
    mlp_only_layers: Counts | None = None


class Beside:
    """Read by SGLang's classes and by transformers' models, or in published folders."""

    dual_chunk_attention_config: Object | None = None
    partial_rotary_factor: Positive = 1.0


class BesideMoe(Beside):
    head_dim: Size | None = None
    layer_types: Texts | None = None
    max_window_layers: Count | None = None
    n_shared_experts: Count | None = None
    num_local_experts: Size | None = None
    qkv_bias: Flag = True
    shared_expert_intermediate_size: Count = 0


QWEN3 = Published("Qwen3ForCausalLM", Qwen3Config, Beside)
QWEN3_MOE = Published("Qwen3MoeForCausalLM", Qwen3MoeConfig, BesideMoe)
