"""Packed sequences (thd): what every layer of a micro-batch reads of them.

Shape letter: t tokens of this rank.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from slime_megatron.train.model.packed.context_parallel import runs_of_rank
from slime_megatron.train.model.packed.copies import on_device
from slime_megatron.train.model.packed.rows import PackRows

T = TypeVar("T")
Prefix = tuple[range, ...]
"""The rows of the pack where the tokens of a sequence stand that are before its own ones, in their order: parts of
earlier sequences, with which it shares them. `slime.train.packing.shared_rows`."""


class TakesPrefixes:
    """What attention, or its core, and a router of experts inherit that heed `PackedSequences.prefixes`."""


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]
    """Megatron-core's packed-sequence parameters with the lengths kept on the host.

    One object serves every layer of a micro-batch; the lengths need no device synchronisation.

    Attributes:
        lengths: padded length of each sequence, over all context-parallel ranks.
        cp_size, cp_rank: of the context-parallel group that shares the pack.
        contiguous: each rank holds one chunk of a sequence instead of two (zig-zag).
        prefixes: of each sequence, what it shares with earlier ones; `lengths` then counts its own tokens alone. None
            where all are whole.
        padding: [t] bool, of what only fills up; None where all tokens count alike.
        readers: [t] fp32, of how many sequences each token is a part, 0 of padding; None where all are whole. For sums
            over tokens that are to be the same however the sequences are packed.
        loss_weights: [t] fp32, for losses of the layers' own: sums of weighted tokens add up to the mean over the
            step's loss tokens. None where nothing is trained.
        num_step_tokens: of the whole optimizer step: sums over tokens divided by it add up to the mean over all.
        recorded: [t, ...] what engines noted of the tokens, by name (`slime.models.traits.Recording`); 0: nothing.
        kept: [t, k] int32, as of `slime.types.KEPT_TOKENS`; None: samples are drawn from all tokens.
        given: what blocks with an extra loss read of the pack, by its type (`slime.models.traits.ExtraLoss.prepare`).
    """

    lengths: Sequence[int] = ()
    cp_size: int = 1
    cp_rank: int = 0
    contiguous: bool = False
    prefixes: Sequence[Prefix] | None = None
    padding: Tensor | None = None
    readers: Tensor | None = None
    loss_weights: Tensor | None = None
    num_step_tokens: int = 1
    recorded: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Tensor | None = None
    given: dict[type, Any] = field(default_factory=dict)
    _of_pass: dict[type, Any] = field(default_factory=dict, init=False)
    _derived: dict[Callable[..., Any], Any] = field(default_factory=dict, init=False)

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
        """From padded sequence borders [num_sequences + 1], and what each sequence shares with earlier ones."""
        borders = on_device(torch.tensor(list(cu_seqlens), dtype=torch.int32), device)
        lengths = [int(end) - int(start) for start, end in pairwise(cu_seqlens)]
        assert all(length % (2 * cp_size) == 0 for length in lengths) or cp_size == 1, "pad to multiples of 2 * CP"
        assert prefixes is None or cp_size == 1, "a prompt is shared on one rank"
        before = [sum(map(len, rows)) for rows in prefixes] if prefixes else [0] * len(lengths)
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
            prefixes=prefixes or None,
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

    def derived(self, make: Callable[[PackedSequences], T]) -> T:
        """What `make` makes of the pack, once for all layers and passes: tables that layers look up, on the device."""
        if make not in self._derived:
            self._derived[make] = make(self)
        found: T = self._derived[make]
        return found

    def padding_of(self, shard: dist.ProcessGroup | None) -> Tensor | None:
        """[1, tokens]: `padding`, or the part of it that this rank of sequence parallelism holds."""
        found = _part(self.padding, shard)
        return None if found is None else found[None]

    def readers_of(self, shard: dist.ProcessGroup | None) -> Tensor | None:
        """[tokens]: `readers`, or the part of it that this rank of sequence parallelism holds."""
        return _part(self.readers, shard)

    @property
    def positions(self) -> Tensor:
        """[t] int64, of each token within its sequence, shared ones before it counted."""
        return self.rows.positions

    @cached_property
    def rows(self) -> PackRows:
        """Where this rank's tokens stand in the pack."""
        how: dict[str, Any] = {"contiguous": self.contiguous, "prefixes": self.prefixes}
        borders = [0, *accumulate(self.lengths)]
        ranks = [runs_of_rank(borders, self.cp_size, rank, **how) for rank in range(self.cp_size)]
        return PackRows.of(ranks, self.cp_rank, self.cu_seqlens_q.device)


def _part(of_tokens: Tensor | None, shard: dist.ProcessGroup | None) -> Tensor | None:
    if of_tokens is None or shard is None:
        return of_tokens
    return of_tokens.chunk(shard.size())[shard.rank()]
