"""Causal attention over packed sequences, with all-gather context parallelism.

Shape letters: t tokens of this rank, h query heads, g key-value heads, d query/key head size, e value head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from slime_megatron.train.model.linear import device_of
from slime_megatron.train.model.packed.copies import on_device
from slime_megatron.train.model.packed.sequences import PackedSequences, TakesPrefixes
from slime_megatron.transformer.attention.causal import Segments, causal_attention
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
    def of(cls, lengths: Sequence[int], cp_size: int, cp_rank: int, device: torch.device) -> ContextParallelLayout:
        """Of the part of a rank."""
        index, queries, keys, offset = [], [], [], 0
        num_local_tokens = sum(lengths) // cp_size
        for length in lengths:
            half = length // (2 * cp_size)
            chunks = [_gathered_rows(c, half, offset, num_local_tokens, cp_size) for c in range(2 * cp_size)]
            for chunk in (cp_rank, 2 * cp_size - 1 - cp_rank):
                index += chunks[: chunk + 1]
                queries.append(half)
                keys.append((chunk + 1) * half)
            offset += 2 * half
        return cls(on_device(torch.cat(index), device), Segments.of(queries, keys, device))


def _whole(packed: PackedSequences) -> Segments:
    """The sequences as attention takes them where one rank holds them whole."""
    return Segments(packed.lengths, packed.lengths, packed.cu_seqlens_q, packed.cu_seqlens_kv)


def _layout(packed: PackedSequences) -> ContextParallelLayout:
    """Where this rank's queries find their keys in the gathered pack."""
    assert not packed.contiguous, "this attention balances its work by zig-zag"
    return ContextParallelLayout.of(packed.lengths, packed.cp_size, packed.cp_rank, packed.cu_seqlens_q.device)


def _gathered_rows(chunk: int, half: int, offset: int, num_local_tokens: int, cp_size: int) -> Tensor:
    """Rows of chunk `chunk` (of 2n) of a sequence that begins at local row `offset` on every rank."""
    first_half = chunk < cp_size
    rank = chunk if first_half else 2 * cp_size - 1 - chunk
    start = rank * num_local_tokens + offset + (0 if first_half else half)
    return torch.arange(start, start + half)


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
        if packed_seq_params.prefixes:
            shared = packed_seq_params.derived(SharedPrompts.of)
            return shared.attend(self.attend, query, key, value, self.scale).flatten(1)
        if packed_seq_params.cp_size == 1:
            return self.attend(query, key, value, packed_seq_params.derived(_whole), self.scale).flatten(1)
        layout = packed_seq_params.derived(_layout)
        key, value = self._gather(key, value, layout.key_index)
        return self.attend(query, key, value, layout.segments, self.scale).flatten(1)

    def _gather(self, key: Tensor, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every context-parallel rank, in the order of `index`; the gradient is scattered back."""
        both = torch.cat([key.flatten(1), value.flatten(1)], dim=1)
        both = gather_from_sequence_parallel_region(both, tensor_parallel_output_grad=True, group=self.cp_group)
        keys, values = both.index_select(0, index).split([key[0].numel(), value[0].numel()], dim=1)
        return keys.reshape(-1, *key.shape[1:]), values.reshape(-1, *value.shape[1:])
