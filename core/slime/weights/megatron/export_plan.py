"""What an export moves, from whom to whom: thought out once, the same on every rank. No communication."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle

import torch

from slime.config.fp8 import BLOCK, Fp8Format
from slime.errors import SlimeError
from slime.weights.megatron.mapping import Entry, Piece, Shard
from slime.weights.shared.bucket import in_buckets, loaded_together
from slime.weights.shared.fp8 import E4M3, scales_shape
from slime.weights.shared.quantized import is_quantized
from slime.weights.shared.views import Form, aligned


@dataclass(frozen=True)
class Holding:
    """What a rank tells the others of a parameter's shard.

    Attributes:
        is_copy: of another stage's parameter; it is never asked for.
    """

    shard: Shard
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_copy: bool


@dataclass(frozen=True)
class Held:
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


Holders = Mapping[str, Sequence[Held]]
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
            Held(shard, each.shape, each.dtype, tuple(ranks[name, shard]), count[name, shard] == len(told))
            for shard, each in sorted(shards.items(), key=lambda item: item[0].rank)
        ]
        for name, shards in of_name.items()
    }


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of a rank's shard that are rows of a tensor of the bucket: `piece`, whose `index` counts these tensors.

    Attributes:
        rank: who supplies it.
        form: of the rows.
        in_fp8: they are quantised where they are, and come with their scales.
        everywhere: every rank has it.
    """

    rank: int
    parameter: str
    dim: int
    piece: Piece
    form: Form
    in_fp8: bool
    everywhere: bool

    @property
    def sent(self) -> list[Form]:
        """What travels."""
        return in_fp8(self.form) if self.in_fp8 else [self.form]


def in_fp8(form: Form) -> list[Form]:
    """A matrix in FP8, and its scales."""
    shape, _ = form
    return [(shape, E4M3), (scales_shape(shape, (BLOCK, BLOCK)), torch.float32)]


@dataclass(frozen=True)
class Bucket:
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
        fp8: how the tensors are wanted; None: as they are.
    """

    holders: Holders
    capacity: int
    receivers: tuple[int, ...] | None
    fp8: Fp8Format | None

    def plan(self, entries: Sequence[Entry]) -> list[Bucket]:
        """The buckets of `entries`, in the order in which all ranks go through them.

        Raises:
            SlimeError: an entry names a parameter that no rank has.
        """
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

    def _by_turns(self, by_receiver: Mapping[int | None, Sequence[list[Entry]]]) -> Iterator[Bucket]:
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

    def _is_quantized(self, name: str, form: Form) -> bool:
        return self.fp8 is not None and is_quantized(name, form[0], self.fp8)

    def _num_bytes(self, run: Sequence[Entry]) -> int:
        tensors = [tensor for entry in run for tensor in self._tensors(entry)]
        forms = [
            each for name, form in tensors for each in (in_fp8(form) if self._is_quantized(name, form) else [form])
        ]
        return sum(aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in forms)

    def _bucket(self, entries: Sequence[Entry], receiver: int | None, *, last: bool) -> Bucket:
        tensors: list[tuple[str, Form]] = []
        blocks: list[Block] = []
        for entry in entries:
            of_entry = self._tensors(entry)
            blocks += self._blocks(entry, of_entry, len(tensors), receiver)
            tensors += of_entry
        return Bucket(receiver, last, tensors, blocks)

    def _blocks(
        self, entry: Entry, tensors: Sequence[tuple[str, Form]], start: int, receiver: int | None
    ) -> Iterator[Block]:
        shards = self.holders[entry.megatron]
        dim = shards[0].shard.dim
        pieces = [list(entry.rule.layout.pieces(held.shape[dim], held.shard)) for held in shards]
        aligned = [
            self._is_quantized(*tensor)
            and all(_fits_blocks(piece, tensor[1][0][dim]) for of in pieces for piece in of if piece.index == index)
            for index, tensor in enumerate(tensors)
        ]
        rank = shards[0].ranks[0] if receiver is None else receiver
        replica = next((held.ranks.index(rank) for held in shards if rank in held.ranks), 0)
        for held, of_shard in zip(shards, pieces, strict=True):
            for piece in of_shard:
                shape = (*held.shape[:dim], piece.length, *held.shape[dim + 1 :])
                yield Block(
                    held.nearest(rank, replica),
                    entry.megatron,
                    dim,
                    replace(piece, index=start + piece.index),
                    (shape, held.dtype),
                    aligned[piece.index],
                    held.everywhere,
                )


def _fits_blocks(piece: Piece, num_rows: int) -> bool:
    """Its rows are whole blocks of the HF tensor."""
    end = piece.source + piece.length
    return piece.source % BLOCK == 0 and (end % BLOCK == 0 or end == num_rows)
