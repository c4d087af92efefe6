"""Multi-head latent attention."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import MLATransformerConfig
from torch import Tensor

from slime_megatron.latent_attention.heads import heads
from slime_megatron.train.model.linear import ReplicatedLinear, RMSNorm, device_of
from slime_megatron.train.model.packed.sequences import PackedSequences
from slime_megatron.transformer.attention.core import CAUSAL, attended, core_attention
from slime_megatron.transformer.rotary.module import RotaryTable, RotaryTables, rotary


def mla(config: MLATransformerConfig) -> ModuleSpec:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1)."""
    norm = RMSNorm if config.qk_layernorm else IdentityOp
    return ModuleSpec(module=PackedLatentAttention, params=CAUSAL, submodules=submodules(core_attention(config), norm))


def submodules(core: type, norm: type = RMSNorm) -> MLASelfAttentionSubmodules:
    """Those of `ReplicatedDownMLA`."""
    return MLASelfAttentionSubmodules(
        linear_q_proj=ColumnParallelLinear,
        linear_q_down_proj=ColumnParallelLinear,
        linear_q_up_proj=ColumnParallelLinear,
        linear_kv_down_proj=ColumnParallelLinear,
        linear_kv_up_proj=ColumnParallelLinear,
        core_attention=core,
        linear_proj=RowParallelLinear,
        q_layernorm=norm,
        kv_layernorm=norm,
    )


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
        found = self.rotary_pos_emb(packed.max_seqlen_kv, packed_seq=True)
        angles, scale = found if isinstance(found, tuple) else (found, 1.0)  # YaRN has a factor for both tables
        return packed.derived(RotaryTables).of(angles, interleaved=False, scale=scale)

    def up_queries(self, latent: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
        """The parts of every head that are not turned, [t, h, qk_head_dim], and that are, turned.

        Args:
            latent: of `down_queries`.
        """
        sizes = [self.config.qk_head_dim, self.config.qk_pos_emb_head_dim]
        plain, turning = torch.split(self._queries(latent), sizes, dim=-1)
        return plain, self.rotate(turning, *table, True)

    def _queries(self, latent: Tensor) -> Tensor:
        """[t, h, q_head_dim], not turned yet."""
        up = self.linear_q_proj if self.config.q_lora_rank is None else self.linear_q_up_proj
        queries: Tensor = up(latent)[0].unflatten(-1, (-1, self.q_head_dim))
        return queries

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

    def __init__(self, config: MLATransformerConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.heads = heads(device_of(config))

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
        qkv = up.checkpoint(self._query_key_value, *given) if up else self._query_key_value(*given)
        out = attended(self, qkv, attention_mask, packed)
        if up:
            up.discard_output_and_register_recompute(out)
        output, bias = self.linear_proj(out)
        return output, bias

    def _query_key_value(
        self, query_latent: Tensor, latent: Tensor, turning: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[t, h, q_head_dim] twice and [t, h, v_head_dim], of compressed queries and latents [s, ...] and of the keys'
        part that is to be turned [t, rotary size]."""
        up = self.linear_kv_up_proj(latent)[0].unflatten(-1, (-1, self.config.qk_head_dim + self.config.v_head_dim))
        return self.heads(self._queries(query_latent), up, turning, cos, sin)
