"""Self-attention specs: grouped-query attention and multi-head latent attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.extensions.transformer_engine import HAVE_TE, TEDotProductAttention
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import (
    _yarn_get_concentration_factor_from_config as concentration_factor,
)
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from megatron.core.transformer.attention import Attention, SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch import Tensor

from slime.train.specs.linear import PostNormRowParallelLinear, ReplicatedLinear, RMSNorm, device_of
from slime.train.specs.packed_attention import PackedAttention, PackedSequences
from slime.train.specs.rotary import RotaryTable, rotary, split

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
    return ModuleSpec(module=PackedLatentAttention, params=_CAUSAL, submodules=submodules)


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
        heads = self._query_key_value(hidden_states, rotary_pos_emb, packed_seq_params)
        output, bias = self.linear_proj(_attended(self, heads, attention_mask, packed_seq_params))
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


def _attended(
    layer: Attention, heads: Sequence[Tensor], attention_mask: Tensor | None, packed: PackedSequences
) -> Tensor:
    """From queries, keys and values, as `PackedAttention` takes them, to [t, 1, heads * value size]; computed again in
    the backward pass where that is wanted."""
    recompute = layer.checkpoint_core_attention and layer.training
    attend = layer._checkpointed_attention_forward if recompute else layer.core_attention
    mask_type = layer.attn_mask_type
    out: Tensor = attend(*heads, attention_mask, attn_mask_type=mask_type, packed_seq_params=packed)
    return out.reshape(len(out), 1, -1)


class ReplicatedDownMLA(MLASelfAttention):  # type: ignore[misc]
    """What latent attention to all keys and to chosen ones share: two down projections that are replicated over tensor
    parallelism, and the rotary table.

    Megatron-core's local spec shards and gathers the projections, and its backward then drops the part of the rope
    key's gradient that comes from the other ranks' heads.
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
        self.rotate, _ = rotary(device_of(config))

    def rotary_table(self, packed: PackedSequences) -> RotaryTable:
        """Of the pack's tokens on this context-parallel rank, for neighbours as pairs."""
        found = self.rotary_pos_emb(packed.max_seqlen_q, packed_seq=True)
        angles, scale = found if isinstance(found, tuple) else (found, 1.0)  # YaRN has a factor for both tables
        return packed.rotary_table(angles, interleaved=False, scale=scale)

    def up_queries(self, latent: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
        """The parts of every head that are not turned, [t, h, qk_head_dim], and that are, turned.

        Args:
            latent: of `down_queries`.
        """
        up = self.linear_q_proj if self.config.q_lora_rank is None else self.linear_q_up_proj
        query = up(latent)[0].unflatten(-1, (-1, self.q_head_dim))
        plain, turning = query.split([self.config.qk_head_dim, self.config.qk_pos_emb_head_dim], dim=-1)
        return plain, self.rotate(turning, *table, True)

    def down_queries(self, hidden: Tensor) -> Tensor:
        """[s, hidden_size] -> compressed and normed [s, q_lora_rank]; hidden states where they are not compressed."""
        return hidden if self.config.q_lora_rank is None else self.q_layernorm(self.linear_q_down_proj(hidden)[0])

    def down_keys(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[s, hidden_size] -> normed latents [s, kv_lora_rank] and what is still to be turned, [s, rotary size]."""
        sizes = [self.config.kv_lora_rank, self.config.qk_pos_emb_head_dim]
        latent, turning = self.linear_kv_down_proj(hidden)[0].split(sizes, dim=-1)
        return self.kv_layernorm(latent), turning


class PackedLatentAttention(ReplicatedDownMLA):
    """Latent attention to all keys, with a forward pass for packed training batches alone, as `PackedSelfAttention`.

    Shape letters: s tokens of a rank's sequence shard, t of its context-parallel rank, h heads of this rank.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        packed_seq_params: PackedSequences | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """[s, 1, hidden_size] -> the same shape, and the bias still to be added."""
        assert packed_seq_params is not None, "slime packs every batch"
        packed, hidden = packed_seq_params, hidden_states[:, 0]
        latent, turning = self.down_keys(hidden)
        if self.config.sequence_parallel:
            turning = gather_from_sequence_parallel_region(turning, group=self.tp_group)
        given = (self.down_queries(hidden), latent, turning, *self.rotary_table(packed))
        fp8 = self.config.fp8 or self.config.fp4  # upstream takes False for yes
        up = CheckpointWithoutOutput(fp8) if self.recompute_up_proj and self.training else None
        heads = up.checkpoint(self._query_key_value, *given) if up else self._query_key_value(*given)
        out = _attended(self, heads, attention_mask, packed)
        if up:
            up.discard_output_and_register_recompute(out)
        output, bias = self.linear_proj(out)
        return output, bias

    def _query_key_value(
        self, query_latent: Tensor, latent: Tensor, turning: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[t, h, q_head_dim] twice and [t, h, v_head_dim], of compressed queries and latents [s, ...] and of the keys'
        part that is to be turned [t, rotary size]."""
        table, sizes = RotaryTable(cos, sin), [self.config.qk_head_dim, self.config.v_head_dim]
        query = torch.cat(self.up_queries(query_latent, table), dim=-1)
        up = self.linear_kv_up_proj(latent)[0].unflatten(-1, (-1, sum(sizes)))
        plain, value = up.split(sizes, dim=-1)
        turned = self.rotate(turning[:, None], *table, True).expand(-1, plain.size(1), -1)
        return query, torch.cat([plain, turned], dim=-1), value.contiguous()
