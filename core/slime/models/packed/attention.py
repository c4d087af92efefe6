"""Packed sequences (thd) and causal attention over them, with all-gather context parallelism.

Shape letters: t tokens of this rank, h query heads, g key-value heads, d query/key head size, e value head size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from slime.models.linear import device_of
from slime.models.packed.causal_attention import Segments, causal_attention
from slime.models.packed.rows import PackRows
from slime.models.packed.shared_prompts import Prefix, SharedPrompts
from slime.models.rotary.module import RotaryTable

T = TypeVar("T")


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]
    """Megatron-core's packed-sequence parameters with the lengths kept on the host.

    One object serves every layer of a micro-batch; the lengths need no device synchronisation.

    Attributes:
        lengths: padded length of each sequence, over all context-parallel ranks.
        cp_size, cp_rank: of the context-parallel group that shares the pack.
        contiguous: each rank holds one chunk of a sequence instead of two (zig-zag).
        shared: where sequences begin with tokens of earlier ones; `lengths` then counts their own alone. None where all
            are whole.
        padding: [t] bool, of what only fills up; None where all tokens count alike.
        loss_weights: [t] fp32, for losses of the layers' own: a weighted sum over tokens counts as the mean over the
            step's loss tokens. None where nothing is trained.
        recorded: [t, ...] what engines noted of the tokens, by name (`slime.models.traits.Recording`); 0: nothing.
        given: what blocks with an extra loss read of the pack, by its type (`slime.models.traits.ExtraLoss.prepare`).
    """

    lengths: Sequence[int] = ()
    cp_size: int = 1
    cp_rank: int = 0
    contiguous: bool = False
    shared: SharedPrompts | None = None
    padding: Tensor | None = None
    loss_weights: Tensor | None = None
    recorded: Mapping[str, Tensor] = field(default_factory=dict)
    given: dict[type, Any] = field(default_factory=dict)
    _of_pass: dict[type, Any] = field(default_factory=dict, init=False)
    _rotary: dict[int, tuple[Tensor, RotaryTable]] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls,
        cu_seqlens: Sequence[int],
        cp_size: int,
        cp_rank: int,
        device: torch.device,
        *,
        contiguous: bool = False,
        prefixes: Sequence[Prefix] | None = None,
    ) -> PackedSequences:
        """From padded sequence borders [num_sequences + 1], and what each sequence shares with an earlier one."""
        borders = torch.tensor(list(cu_seqlens), dtype=torch.int32, device=device)
        lengths = [int(end) - int(start) for start, end in pairwise(cu_seqlens)]
        assert all(length % (2 * cp_size) == 0 for length in lengths) or cp_size == 1, "pad to multiples of 2 * CP"
        assert prefixes is None or cp_size == 1, "a prompt is shared on one rank"
        before = [num_shared for _, num_shared in prefixes] if prefixes else [0] * len(lengths)
        return cls(
            qkv_format="thd",
            cu_seqlens_q=borders,
            cu_seqlens_kv=borders,
            max_seqlen_q=max(lengths),
            max_seqlen_kv=max(map(sum, zip(lengths, before, strict=True))),
            lengths=lengths,
            cp_size=cp_size,
            cp_rank=cp_rank,
            contiguous=contiguous,
            shared=SharedPrompts(lengths, prefixes, device) if prefixes else None,
        )

    def for_one_pass(self, *, replays: bool = True) -> PackedSequences:
        """The same pack, of which no layer has told another anything yet (`of_pass`); without what engines recorded if
        it is not to be replayed."""
        one_pass = copy.copy(self)
        one_pass._of_pass = {}
        if not replays:
            one_pass.recorded = {}
        return one_pass

    def of_pass(self, kind: type[T]) -> T:
        """What the layers of a block share in one pass through a pipeline stage: one object of the block's own type.

        Another pass, under other weights or in another pipeline stage, has a new one; recomputation of a layer is
        handed the pack of its first computation, and so finds the very same.
        """
        shared: T = self._of_pass.setdefault(kind, kind())
        return shared

    def padding_of(self, shard: dist.ProcessGroup | None) -> Tensor | None:
        """[1, tokens]: `padding`, or the part of it that this rank of sequence parallelism holds."""
        if self.padding is None:
            return None
        return self.padding[None] if shard is None else self.padding.chunk(shard.size())[shard.rank()][None]

    @property
    def positions(self) -> Tensor:
        """[t] int64, of each token within its sequence."""
        return self.shared.positions if self.shared else self.rows.positions

    @cached_property
    def rows(self) -> PackRows:
        """Where this rank's tokens stand in the pack."""
        device = self.cu_seqlens_q.device
        return PackRows.of(self.lengths, self.cp_size, self.cp_rank, contiguous=self.contiguous, device=device)

    @cached_property
    def segments(self) -> Segments:
        """The sequences as attention takes them where one rank holds them whole."""
        return Segments(self.lengths, self.lengths, self.cu_seqlens_q, self.cu_seqlens_kv)

    def rotary_table(self, angles: Tensor, interleaved: bool, scale: float) -> RotaryTable:
        """See `RotaryTable.of`; made for the first layer with these angles, kept for the others (and for
        recomputation's copies) with the angles, so that no others come to lie where they are."""
        if angles.data_ptr() not in self._rotary:
            self._rotary[angles.data_ptr()] = (angles, RotaryTable.of(angles, self.positions, interleaved, scale))
        return self._rotary[angles.data_ptr()][1]

    @cached_property
    def cp_layout(self) -> ContextParallelLayout:
        """Where this rank's queries find their keys in the gathered pack."""
        assert not self.contiguous, "this attention balances its work by zig-zag"
        return ContextParallelLayout.of(self.lengths, self.cp_size, self.cp_rank, self.cu_seqlens_q.device)


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
        return cls(torch.cat(index).to(device), Segments.of(queries, keys, device))


def _gathered_rows(chunk: int, half: int, offset: int, num_local_tokens: int, cp_size: int) -> Tensor:
    """Rows of chunk `chunk` (of 2n) of a sequence that begins at local row `offset` on every rank."""
    first_half = chunk < cp_size
    rank = chunk if first_half else 2 * cp_size - 1 - chunk
    start = rank * num_local_tokens + offset + (0 if first_half else half)
    return torch.arange(start, start + half)


class PackedAttention(MegatronModule):  # type: ignore[misc]
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
        if shared := packed_seq_params.shared:
            return shared.attend(self.attend, query, key, value, self.scale).flatten(1)
        if packed_seq_params.cp_size == 1:
            return self.attend(query, key, value, packed_seq_params.segments, self.scale).flatten(1)
        layout = packed_seq_params.cp_layout
        key, value = self._gather(key, value, layout.key_index)
        return self.attend(query, key, value, layout.segments, self.scale).flatten(1)

    def _gather(self, key: Tensor, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every context-parallel rank, in the order of `index`; the gradient is scattered back."""
        both = torch.cat([key.flatten(1), value.flatten(1)], dim=1)
        both = gather_from_sequence_parallel_region(both, tensor_parallel_output_grad=True, group=self.cp_group)
        keys, values = both.index_select(0, index).split([key[0].numel(), value[0].numel()], dim=1)
        return keys.reshape(-1, *key.shape[1:]), values.reshape(-1, *value.shape[1:])
