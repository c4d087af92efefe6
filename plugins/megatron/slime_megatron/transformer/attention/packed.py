"""Causal attention over packed sequences, with all-gather context parallelism.

Shape letters: t tokens of this rank, h query heads, g key-value heads, d query/key head size, e value head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from batch_invariant.passes import instead, is_on
from slime_megatron.train.model.linear import device_of
from slime_megatron.train.model.packed.copies import on_device
from slime_megatron.train.model.packed.sequences import PackedSequences, TakesPrefixes
from slime_megatron.transformer.attention.causal import Attend, Segments, causal_attention, invariant
from slime_megatron.transformer.attention.shared_prompts import SharedPrompts


@dataclass(frozen=True)
class ContextParallelLayout:
    """Zig-zag context parallelism: rank r holds chunks r and 2n-1-r of every sequence cut into 2n chunks.

    Each of the two chunks becomes a sequence of its own, whose keys are all chunks up to and including it.

    Attributes:
        key_index: [sum of key lengths] rows of the gathered keys [n * t], in the order of the chunks.
        segments: the chunks; causal from the bottom right.
    """

    key_index: Tensor
    segments: Segments

    @classmethod
    def of(cls, packed: PackedSequences) -> ContextParallelLayout:
        """Of the part of a rank."""
        assert not packed.contiguous, "this attention balances its work by zig-zag"
        runs, device = packed.rows.runs, packed.cu_seqlens_q.device
        seen = on_device(torch.from_numpy(np.concatenate([run.seen() for run in runs])), device)
        segments = Segments.of([run.length for run in runs], [run.num_seen for run in runs], device)
        return cls(packed.rows.order.index_select(0, seen), segments)


def _whole(packed: PackedSequences) -> Segments:
    """The sequences as attention takes them where one rank holds them whole."""
    return Segments(packed.lengths, packed.lengths, packed.cu_seqlens_q, packed.cu_seqlens_kv)


class PackedAttention(MegatronModule, TakesPrefixes):  # type: ignore[misc]
    """Megatron-core's `core_attention` slot: grouped queries and unequal value head size, causal, no dropout."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> None:
        super().__init__(config=config)
        assert not config.attention_dropout, "post-training runs without dropout"
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        self.cp_group = groups.cp
        is_windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        window = config.window_size[0] + 1 if is_windowed else None
        self.attend = causal_attention(device_of(config), config.params_dtype, window)
        self.scale = softmax_scale or config.softmax_scale or 1 / math.sqrt(k_channels or config.kv_channels)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSequences | None = None,
    ) -> Tensor:
        """query [t, h, d], key [t, g, d], value [t, g, e] -> [t, h * e]."""
        assert packed_seq_params is not None, "slime packs every batch"
        ways = [partial(self._attended, attend, packed_seq_params) for attend in (self.attend, invariant)]
        return instead(*ways, query, key, value) if is_on() else ways[0](query, key, value)

    def _attended(self, attend: Attend, packed: PackedSequences, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if packed.prefixes:
            return packed.derived(SharedPrompts.of).attend(attend, query, key, value, self.scale).flatten(1)
        if packed.cp_size == 1:
            return attend(query, key, value, packed.derived(_whole), self.scale).flatten(1)
        layout = packed.derived(ContextParallelLayout.of)
        key, value = self._gather(key, value, layout.key_index)
        return attend(query, key, value, layout.segments, self.scale).flatten(1)

    def _gather(self, key: Tensor, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every context-parallel rank, in the order of `index`; the gradient is scattered back."""
        both = torch.cat([key.flatten(1), value.flatten(1)], dim=1)
        both = gather_from_sequence_parallel_region(both, tensor_parallel_output_grad=True, group=self.cp_group)
        keys, values = both.index_select(0, index).split([key[0].numel(), value[0].numel()], dim=1)
        return keys.reshape(-1, *key.shape[1:]), values.reshape(-1, *value.shape[1:])
