"""Self-attention specs: grouped-query attention and multi-head latent attention."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.extensions.transformer_engine import HAVE_TE, TEDotProductAttention
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import (
    _yarn_get_concentration_factor_from_config as concentration_factor,
)
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch import Tensor

from slime.train.specs.linear import PostNormRowParallelLinear, ReplicatedLinear, RMSNorm, device_of
from slime.train.specs.packed_attention import PackedAttention, PackedSequences
from slime.train.specs.rotary import rotary, split

_CAUSAL = {"attn_mask_type": AttnMaskType.causal}


def gqa(config: TransformerConfig, *, post_norm: bool = False) -> ModuleSpec:
    """Grouped-query attention (Ainslie et al. 2023), with query and key norms where `config.qk_layernorm`."""
    norm = RMSNorm if config.qk_layernorm else IdentityOp
    submodules = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear,
        core_attention=core_attention(config),
        linear_proj=PostNormRowParallelLinear if post_norm else RowParallelLinear,
        q_layernorm=norm,
        k_layernorm=norm,
    )
    return ModuleSpec(module=PackedSelfAttention, params=_CAUSAL, submodules=submodules)


def mla(config: MLATransformerConfig) -> ModuleSpec:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1)."""
    norm = RMSNorm if config.qk_layernorm else IdentityOp
    submodules = MLASelfAttentionSubmodules(
        linear_q_proj=ColumnParallelLinear,
        linear_q_down_proj=ColumnParallelLinear,
        linear_q_up_proj=ColumnParallelLinear,
        linear_kv_down_proj=ColumnParallelLinear,
        linear_kv_up_proj=ColumnParallelLinear,
        core_attention=core_attention(config),
        linear_proj=RowParallelLinear,
        q_layernorm=norm,
        kv_layernorm=norm,
    )
    return ModuleSpec(module=ReplicatedDownMLA, params=_CAUSAL, submodules=submodules)


def core_attention(config: TransformerConfig) -> type:
    """Transformer Engine's attention where it is installed and the model is in bf16 on a GPU, else slime's own.

    Linears and norms stay Megatron-core's and torch's: Transformer Engine's change what a checkpoint holds.
    """
    on_gpu = device_of(config).type == "cuda"
    return TEDotProductAttention if HAVE_TE and on_gpu and config.params_dtype is torch.bfloat16 else PackedAttention


class PackedSelfAttention(SelfAttention):  # type: ignore[misc]
    """Megatron-core's self-attention with a forward pass for packed training batches alone.

    Upstream's asks the device for the sequence lengths in every layer and turns queries and keys in a chain of small
    operations. Parameters, their names and checkpoints are upstream's.

    Shape letters: t tokens, g key-value groups of this rank, m query heads a group, d head size.
    """

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        assert config.num_query_groups >= self.world_size, "tensor parallelism cuts between key-value groups"
        assert not config.attention_output_gate, "no family with gated attention output is served"
        self.rotate, self.split_and_rotate = rotary(device_of(config))
        has_rotary = not (config.no_rope_freq and config.no_rope_freq[self.layer_number - 1])
        self.rotary_scale = concentration_factor(config) if has_rotary else None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        rotary_pos_emb: Tensor | None = None,
        packed_seq_params: PackedSequences | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """[t (/ tp under sequence parallelism), 1, hidden_size] -> the same shape, and the bias still to be added."""
        assert packed_seq_params is not None, "slime packs every batch"
        query, key, value = self._query_key_value(hidden_states, rotary_pos_emb, packed_seq_params)
        recompute = self.checkpoint_core_attention and self.training
        attend = self._checkpointed_attention_forward if recompute else self.core_attention
        mask_type = self.attn_mask_type
        out = attend(query, key, value, attention_mask, attn_mask_type=mask_type, packed_seq_params=packed_seq_params)
        output, bias = self.linear_proj(out.reshape(len(out), 1, -1))
        return output, bias

    def _query_key_value(
        self, hidden_states: Tensor, angles: Tensor | None, packed: PackedSequences
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[t, g * m, d], [t, g, d], [t, g, d], normed and turned."""
        mixed, _ = self.linear_qkv(hidden_states)
        qkv = mixed.view(len(mixed), self.num_query_groups_per_partition, -1, self.hidden_size_per_attention_head)
        interleaved, table = self.config.rotary_interleaved, None
        if angles is not None and self.rotary_scale is not None:
            table = packed.rotary_table(angles, interleaved, self.rotary_scale)
        if table is not None and not self.config.qk_layernorm:
            return self.split_and_rotate(qkv, *table, interleaved)
        query, key, value = split(qkv)
        query, key = self.q_layernorm(query), self.k_layernorm(key)
        if table is not None:
            query, key = self.rotate(query, *table, interleaved), self.rotate(key, *table, interleaved)
        return query, key, value


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
