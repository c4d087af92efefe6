"""What an export moves, from whom to whom: thought out once, the same on every rank. No communication."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle

import torch

from slime.errors import SlimeError
from slime.models.mapping import Entry, Piece, Shard
from slime.topology.quantization import WeightFormat
from slime.weights.quantized import parts_of
from weight_buckets.bucket import in_buckets, loaded_together
from weight_buckets.views import Form, aligned


@dataclass(frozen=True)
class Holding:
    """What a rank tells the others of a parameter's shard; a copy of another stage's is never asked for."""

    shard: Shard
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_copy: bool


@dataclass(frozen=True)
class ShardHolders:
    """A shard, and all who hold it.

    Attributes:
        ranks: with equal replicas, in ascending order.
        everywhere: every rank has it, as a replica or a copy.
    """

    shard: Shard
    shape: tuple[int, ...]
    dtype: torch.dtype
    ranks: tuple[int, ...]
    everywhere: bool

    def nearest(self, rank: int, replica: int) -> int:
        """Whom `rank` gets it from, itself if it can be; else the holder of the same replica."""
        return rank if rank in self.ranks else self.ranks[replica % len(self.ranks)]


Holders = Mapping[str, Sequence[ShardHolders]]
"""By parameter name its shards, in their order."""


def holders(told: Sequence[Mapping[str, Holding]]) -> Holders:
    """From what each rank tells of its parameters."""
    ranks: dict[tuple[str, Shard], list[int]] = defaultdict(list)
    count: dict[tuple[str, Shard], int] = defaultdict(int)
    of_name: dict[str, dict[Shard, Holding]] = defaultdict(dict)
    for rank, holdings in enumerate(told):
        for name, holding in holdings.items():
            count[name, holding.shard] += 1
            if not holding.is_copy:
                ranks[name, holding.shard].append(rank)
                of_name[name].setdefault(holding.shard, holding)
    return {
        name: [
            ShardHolders(shard, each.shape, each.dtype, tuple(ranks[name, shard]), count[name, shard] == len(told))
            for shard, each in sorted(shards.items(), key=lambda item: item[0].rank)
        ]
        for name, shards in of_name.items()
    }


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of a rank's shard that are rows of a tensor of the bucket: `piece`, whose `index` counts these tensors.

    Attributes:
        rank: who supplies it.
        sent: shapes and dtypes of what travels.
        is_quantized: that is what the rows become where they are; otherwise the rows themselves.
        everywhere: every rank has it.
    """

    rank: int
    parameter: str
    dim: int
    piece: Piece
    sent: Sequence[Form]
    is_quantized: bool
    everywhere: bool


@dataclass(frozen=True)
class PlannedBucket:
    """Parameters that travel together, and the tensors they become.

    Attributes:
        receiver: the rank that gets them; None: all.
        last: the receiver gets no other after it.
        tensors: name and form, before they are quantised.
        blocks: of which they are put together.
    """

    receiver: int | None
    last: bool
    tensors: Sequence[tuple[str, Form]]
    blocks: Sequence[Block]

    @cached_property
    def messages(self) -> Mapping[int, Sequence[Block]]:
        """By sender, what a receiver does not have."""
        by_rank: dict[int, list[Block]] = defaultdict(list)
        for block in self.blocks:
            if block.rank != self.receiver and not (self.receiver is None and block.everywhere):
                by_rank[block.rank].append(block)
        return dict(sorted(by_rank.items()))

    def supplied(self, rank: int) -> list[Block]:
        """What `rank` sends, or has already if it receives."""
        return [block for block in self.blocks if block.rank == rank or (self.receiver is None and block.everywhere)]


@dataclass(frozen=True)
class Planner:
    """Divides an export into buckets.

    Attributes:
        capacity: bytes of a bucket, as the receiver hands it on.
        receivers: the ranks that buckets are divided among, by turns among those that hold something of a bucket, or
            among all; None: every rank gets every bucket.
        form: how the tensors are wanted; None: as they are.
    """

    holders: Holders
    capacity: int
    receivers: tuple[int, ...] | None
    form: WeightFormat | None

    def plan(self, entries: Sequence[Entry]) -> list[PlannedBucket]:
        """The buckets of `entries`, in the order in which all ranks go through them."""
        for entry in entries:
            self._check(entry)
        queues: dict[tuple[int, ...], list[list[Entry]]] = defaultdict(list)
        for run in loaded_together(entries, name=lambda entry: entry.hf[0]):
            queues[self._candidates(run[0])].append(run)
        by_receiver: dict[int | None, list[list[Entry]]] = defaultdict(list)
        for candidates, runs in queues.items():
            turns = cycle(candidates or [None])
            for bucket in in_buckets(runs, self.capacity, num_bytes=self._num_bytes):
                by_receiver[next(turns)].append(bucket)
        return list(self._by_turns(by_receiver))

    def _by_turns(self, by_receiver: Mapping[int | None, Sequence[list[Entry]]]) -> Iterator[PlannedBucket]:
        """A bucket of each receiver in turn, as engines take them: a receiver that has no more is left out."""
        for number in range(max(map(len, by_receiver.values()))):
            for receiver in sorted(by_receiver, key=lambda rank: -1 if rank is None else rank):
                buckets = by_receiver[receiver]
                if number < len(buckets):
                    yield self._bucket(buckets[number], receiver, last=number == len(buckets) - 1)

    def _check(self, entry: Entry) -> None:
        shards = [held.shard for held in self.holders.get(entry.megatron, ())]
        if not shards or [shard.rank for shard in shards] != list(range(shards[0].size)):
            raise SlimeError(
                f"no complete parameter '{entry.megatron}' to make '{entry.hf[0]}' of (shards: {shards})",
                where="weight_mapping",
                todo="The plugin's block_spec and weight_mapping must agree.",
            )

    def _candidates(self, entry: Entry) -> tuple[int, ...]:
        """Who may receive it."""
        if self.receivers is None:
            return ()
        having = {rank for held in self.holders[entry.megatron] for rank in held.ranks}
        return tuple(rank for rank in self.receivers if rank in having) or self.receivers

    def _tensors(self, entry: Entry) -> list[tuple[str, Form]]:
        first = self.holders[entry.megatron][0]
        shapes = entry.rule.layout.hf_shapes(first.shape, first.shard)
        assert len(shapes) == len(entry.hf), f"{entry.hf} have {len(shapes)} shapes"
        return [(name, (shape, first.dtype)) for name, shape in zip(entry.hf, shapes, strict=True)]

    def _forms(self, name: str, whole: Form) -> list[Form]:
        """What engines get for a tensor."""
        if self.form and self.form.is_quantized(name, whole[0]):
            return [form for _, form in parts_of(self.form, name, whole[0])]
        return [whole]

    def _num_bytes(self, run: Sequence[Entry]) -> int:
        forms = [form for entry in run for tensor in self._tensors(entry) for form in self._forms(*tensor)]
        return sum(aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in forms)

    def _bucket(self, entries: Sequence[Entry], receiver: int | None, *, last: bool) -> PlannedBucket:
        tensors: list[tuple[str, Form]] = []
        blocks: list[Block] = []
        for entry in entries:
            of_entry = self._tensors(entry)
            blocks += self._blocks(entry, of_entry, len(tensors), receiver)
            tensors += of_entry
        return PlannedBucket(receiver, last, tensors, blocks)

    def _blocks(
        self, entry: Entry, tensors: Sequence[tuple[str, Form]], start: int, receiver: int | None
    ) -> Iterator[Block]:
        shards = self.holders[entry.megatron]
        dim = shards[0].shard.dim
        pieces = [list(entry.rule.layout.pieces(held.shape[dim], held.shard)) for held in shards]
        in_parts = {
            index
            for index, (name, (shape, _)) in enumerate(tensors)
            if self._is_cut_between_blocks(name, shape, dim, [x for of in pieces for x in of if x.index == index])
        }
        rank = shards[0].ranks[0] if receiver is None else receiver
        replica = next((held.ranks.index(rank) for held in shards if rank in held.ranks), 0)
        for held, of_shard in zip(shards, pieces, strict=True):
            for piece in of_shard:
                rows = (*held.shape[:dim], piece.length, *held.shape[dim + 1 :]), held.dtype
                yield Block(
                    held.nearest(rank, replica),
                    entry.megatron,
                    dim,
                    replace(piece, index=start + piece.index),
                    self._forms(tensors[piece.index][0], rows) if piece.index in in_parts else [rows],
                    piece.index in in_parts,
                    held.everywhere,
                )

    def _is_cut_between_blocks(self, name: str, shape: Sequence[int], dim: int, pieces: Sequence[Piece]) -> bool:
        """Whether engines get a tensor quantised, and ranks quantise each of its pieces where it is."""
        if not (self.form and self.form.is_quantized(name, shape)):
            return False
        borders = {border for piece in pieces for border in (piece.source, piece.source + piece.length)}
        return all(border % self.form.block[dim] == 0 for border in borders - {shape[dim]})
