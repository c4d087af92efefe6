"""Self-attention specs: grouped-query attention and multi-head latent attention."""

from __future__ import annotations

from typing import Any

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from slime.train.specs.linear import PostNormRowParallelLinear, ReplicatedLinear, RMSNorm
from slime.train.specs.packed_attention import PackedAttention

_CAUSAL = {"attn_mask_type": AttnMaskType.causal}


def gqa(config: TransformerConfig, *, post_norm: bool = False) -> ModuleSpec:
    """Grouped-query attention (Ainslie et al. 2023), with query and key norms where `config.qk_layernorm`."""
    norm = RMSNorm if config.qk_layernorm else IdentityOp
    submodules = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=PostNormRowParallelLinear if post_norm else RowParallelLinear,
        q_layernorm=norm,
        k_layernorm=norm,
    )
    return ModuleSpec(module=SelfAttention, params=_CAUSAL, submodules=submodules)


def mla(config: MLATransformerConfig) -> ModuleSpec:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1)."""
    norm = RMSNorm if config.qk_layernorm else IdentityOp
    submodules = MLASelfAttentionSubmodules(
        linear_q_proj=ColumnParallelLinear,
        linear_q_down_proj=ColumnParallelLinear,
        linear_q_up_proj=ColumnParallelLinear,
        linear_kv_down_proj=ColumnParallelLinear,
        linear_kv_up_proj=ColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=RowParallelLinear,
        q_layernorm=norm,
        kv_layernorm=norm,
    )
    return ModuleSpec(module=ReplicatedDownMLA, params=_CAUSAL, submodules=submodules)


class ReplicatedDownMLA(MLASelfAttention):  # type: ignore[misc]
    """MLA whose two down projections are replicated over tensor parallelism.

    Megatron-core's local spec shards and gathers them, and its backward then drops the part of the rope key's
    gradient that comes from the other ranks' heads.
    """

    def __init__(self, config: MLATransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        init = config.init_method
        if config.q_lora_rank is not None:
            self.linear_q_down_proj = ReplicatedLinear(
                config.hidden_size, config.q_lora_rank, config=config, init_method=init
            )
        self.linear_kv_down_proj = ReplicatedLinear(
            config.hidden_size, config.kv_lora_rank + config.qk_pos_emb_head_dim, config=config, init_method=init
        )
