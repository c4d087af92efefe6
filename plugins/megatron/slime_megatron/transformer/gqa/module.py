"""Grouped-query attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import (
    _yarn_get_concentration_factor_from_config as concentration_factor,
)
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from batch_invariant.passes import instead, is_on
from slime_megatron.train.model.linear import RMSNorm, device_of
from slime_megatron.train.model.packed.sequences import PackedSequences
from slime_megatron.transformer.attention.core import CAUSAL, attended, core_attention
from slime_megatron.transformer.post_norm import output_projection
from slime_megatron.transformer.rotary.module import RotaryTables, plain_rotate, rotary, split


def gqa(config: TransformerConfig, *, post_norm: bool = False, norm: type = RMSNorm) -> ModuleSpec:
    """Grouped-query attention (Ainslie et al. 2023).

    Args:
        norm: of each query and key head where `config.qk_layernorm`, and of the output where `post_norm`.
    """
    of_heads = norm if config.qk_layernorm else IdentityOp
    submodules = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear,
        core_attention=core_attention(config),
        linear_proj=output_projection(post_norm=post_norm, norm=norm),
        q_layernorm=of_heads,
        k_layernorm=of_heads,
    )
    return ModuleSpec(module=PackedSelfAttention, params=CAUSAL, submodules=submodules)


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
        output, bias = self.linear_proj(attended(self, heads, attention_mask, packed_seq_params))
        return output, bias

    def _query_key_value(
        self, hidden_states: Tensor, angles: Tensor | None, packed: PackedSequences
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[t, g * m, d], [t, g, d], [t, g, d], normed and turned."""
        mixed, _ = self.linear_qkv(hidden_states)
        qkv = mixed.view(len(mixed), self.num_query_groups_per_partition, -1, self.hidden_size_per_attention_head)
        interleaved, table = self.config.rotary_interleaved, None
        if angles is not None and self.rotary_scale is not None:
            table = packed.derived(RotaryTables).of(angles, interleaved, self.rotary_scale)
        if table is not None and not self.config.qk_layernorm and not is_on():
            return self.split_and_rotate(qkv, *table, interleaved)
        query, key, value = split(qkv)
        query, key = self.q_layernorm(query), self.k_layernorm(key)
        if table is not None:
            rotate = partial(instead, self.rotate, plain_rotate) if is_on() else self.rotate
            query, key = rotate(query, *table, interleaved), rotate(key, *table, interleaved)
        return query, key, value
