"""Gathers Megatron's parameters into whole Hugging Face tensors on global rank 0, or on every rank, bit for bit.

Every shard travels once, from the rank that owns it straight to where it is wanted, many small ones in one message.
The receivers hand the tensors to the engines, or rank 0 writes them as a folder
that transformers loads (`slime.weights.megatron.save_hf`).
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
import torch.distributed as dist

from slime.errors import SlimeError
from slime.weights.megatron.local import LocalTensor, local_tensors
from slime.weights.megatron.mapping import Entry, Piece, Shard, WeightMapping
from slime.weights.shared.views import copy_all

BUCKET_BYTES = 256 * 2**20
"""Parameters that are on their way to rank 0 at once, in bytes; one larger parameter travels alone."""


@dataclass(frozen=True)
class _Owned:
    """What a rank tells the others of one shard it owns.

    Attributes:
        everywhere: every rank holds an equal replica.
    """

    rank: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    shard: Shard
    everywhere: bool = False

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Owners = Mapping[str, Sequence[_Owned]]
"""By parameter name, who owns its shards, in the order of the shards."""


@dataclass(frozen=True)
class Inventory:
    """This rank's weights by name, and who exports what of all. It serves for the life of the modules: training,
    loading and offloading change their tensors in place."""

    local: Mapping[str, LocalTensor]
    owners: Owners
    _batches: dict[tuple[bool, int], Sequence[_Batch]] = field(default_factory=dict)

    def batches(self, mapping: WeightMapping, with_mtp: bool, bucket_bytes: int) -> Sequence[_Batch]:
        """What `export_hf` does with these arguments, thought out once."""
        key = with_mtp, bucket_bytes
        if key not in self._batches:
            buckets = _buckets(_exported(mapping, self.owners, with_mtp), self.owners, bucket_bytes)
            self._batches[key] = [_batch(bucket, self.owners) for bucket in buckets]
        return self._batches[key]


def export_hf(
    modules: Sequence[torch.nn.Module],
    mapping: WeightMapping,
    bucket_bytes: int = BUCKET_BYTES,
    *,
    everywhere: bool = False,
    with_mtp: bool = True,
    inventory: Inventory | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and whole tensor of everything the mapping exports; collective over the default process group.

    The order depends on the mapping alone, not on the layout. Tensors have the dtype and device of their parameters
    and belong to the caller. Rank 0 receives them; the iterator of every other rank is empty and must be drained
    (`drain`), unless they are wanted everywhere. Peak memory of a receiver: about three times `bucket_bytes`, or
    of the largest parameters, what the caller keeps aside.

    Args:
        modules: the rank's `GPTModel`s, one a virtual pipeline stage.
        everywhere: every rank receives all tensors.
        with_mtp: the multi-token prediction layer too, for which an engine that does not speculate has no place.
        inventory: of `take_inventory`, if it was asked before.

    Raises:
        SlimeError: the mapping names a parameter that no rank has.
    """
    inventory = inventory or take_inventory(modules, mapping)
    start = _share if everywhere else _send_or_receive
    batches = inventory.batches(mapping, with_mtp, bucket_bytes)
    for batch, coming in _one_ahead((batch, start(batch, inventory.local)) for batch in batches):
        received = coming.take()
        if everywhere or dist.get_rank() == 0:
            whole = _assemble(batch, received)
            del received  # the caller may keep what it gets for long
            yield from zip(batch.names, whole, strict=True)


T = TypeVar("T")


def _one_ahead(started: Iterator[T]) -> Iterator[T]:
    """What an iterator yields, each when the next has been started."""
    before = next(started, None)
    while before is not None:
        following = next(started, None)
        yield before
        before = following


def drain(tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Take part in an export on a rank that receives nothing."""
    for name, _ in tensors:
        raise AssertionError(f"only rank 0 receives tensors, but got {name}")


def take_inventory(modules: Sequence[torch.nn.Module], mapping: WeightMapping) -> Inventory:
    """Who holds and exports what; collective."""
    local = local_tensors(modules, mapping)
    return Inventory(local, _exchange_owners(local))


def _exchange_owners(local: Mapping[str, LocalTensor]) -> Owners:
    """The one exchange of metadata; afterwards every rank knows who sends what, and when."""
    rank = dist.get_rank()
    mine = {
        name: _Owned(rank, tuple(held.tensor.shape), held.tensor.dtype, held.shard)
        for name, held in local.items()
        if held.primary
    }
    told = mine, {(name, held.shard) for name, held in local.items()}
    everyone = [told] * dist.get_world_size()
    dist.all_gather_object(everyone, told)
    common = set.intersection(*(held for _, held in everyone))
    owners: dict[str, list[_Owned]] = defaultdict(list)
    for owned, _ in everyone:
        for name, part in owned.items():
            owners[name].append(replace(part, everywhere=(name, part.shard) in common))
    return {name: sorted(parts, key=lambda part: part.shard.rank) for name, parts in owners.items()}


def _exported(mapping: WeightMapping, owners: Owners, with_mtp: bool) -> list[Entry]:
    entries = [entry for entry in mapping.entries if entry.rule.exported and (with_mtp or not entry.is_mtp)]
    for entry in entries:
        shards = [part.shard for part in owners.get(entry.megatron, ())]
        if not shards or [shard.rank for shard in shards] != list(range(shards[0].size)):
            raise SlimeError(
                f"no complete parameter '{entry.megatron}' to make '{entry.hf[0]}' of (shards: {shards})",
                where="weight_mapping",
                todo="The plugin's block_spec and weight_mapping must agree.",
            )
    return entries


def _buckets(entries: Sequence[Entry], owners: Owners, bucket_bytes: int) -> Iterator[list[Entry]]:
    bucket: list[Entry] = []
    filled = 0
    for entry in entries:
        num_bytes = sum(part.num_bytes for part in owners[entry.megatron])
        if bucket and filled + num_bytes > bucket_bytes:
            yield bucket
            bucket, filled = [], 0
        bucket.append(entry)
        filled += num_bytes
    if bucket:
        yield bucket


_Key = tuple[str, int]
"""A shard: parameter name and owner."""
_Parts = Sequence[tuple[str, _Owned]]
Received = Mapping[_Key, torch.Tensor]


@dataclass(frozen=True)
class _Block:
    """What a shard and an HF tensor have in common: `piece`, whose `index` counts the batch's tensors."""

    shard: _Key
    dim: int
    piece: Piece


@dataclass(frozen=True)
class _Batch:
    """Parameters that travel together, and the HF tensors they become.

    Attributes:
        by_rank: who sends what.
        names, forms: of the HF tensors; shape and dtype.
        blocks: of which they are put together.
    """

    by_rank: Mapping[int, _Parts]
    names: Sequence[str]
    forms: Sequence[tuple[tuple[int, ...], torch.dtype]]
    blocks: Sequence[_Block]


def _batch(bucket: Sequence[Entry], owners: Owners) -> _Batch:
    names: list[str] = []
    forms: list[tuple[tuple[int, ...], torch.dtype]] = []
    blocks: list[_Block] = []
    for entry in bucket:
        layout, parts = entry.rule.layout, owners[entry.megatron]
        for part in parts:
            pieces = layout.pieces(part.shape[part.shard.dim], part.shard)
            moved = (replace(piece, index=len(names) + piece.index) for piece in pieces)
            blocks += [_Block((entry.megatron, part.rank), part.shard.dim, piece) for piece in moved]
        shapes = layout.hf_shapes(parts[0].shape, parts[0].shard)
        assert len(shapes) == len(entry.hf), f"{entry.hf} have {len(shapes)} shapes"
        names += entry.hf
        forms += [(shape, parts[0].dtype) for shape in shapes]
    return _Batch(_by_rank(bucket, owners), names, forms, blocks)


@dataclass
class _Coming:
    """Shards on their way; what a rank sends must live until they have arrived."""

    works: Sequence[dist.Work]
    received: Received
    sent: torch.Tensor | None = None

    def take(self) -> Received:
        """Wait for them and let go of them: their memory lives as long as the caller needs it."""
        for work in self.works:
            work.wait()
        received = self.received
        self.works, self.received, self.sent = [], {}, None
        return received


def _share(batch: _Batch, local: Mapping[str, LocalTensor]) -> _Coming:
    """One broadcast from each owner, unless everybody has what it would send."""
    received: dict[_Key, torch.Tensor] = {}
    works = []
    for rank, parts in sorted(batch.by_rank.items()):
        received |= {(name, rank): local[name].tensor for name, part in parts if part.everywhere}
        parts = [(name, part) for name, part in parts if not part.everywhere]
        if parts:
            message = _message(rank, parts, local)
            works.append(dist.broadcast(message, src=rank, async_op=True))
            received |= _unpack(rank, parts, message)
    return _Coming(works, received)


def _message(rank: int, parts: _Parts, local: Mapping[str, LocalTensor]) -> torch.Tensor:
    """What `rank` has to say, or on other ranks the room for it."""
    if rank == dist.get_rank():
        return _as_bytes([local[name].tensor for name, _ in parts])
    num_bytes = sum(part.num_bytes for _, part in parts)
    return torch.empty(num_bytes, dtype=torch.uint8, device=next(iter(local.values())).tensor.device)


def _send_or_receive(batch: _Batch, local: Mapping[str, LocalTensor]) -> _Coming:
    """One message from each owner to rank 0, its shards of the batch behind one another as bytes."""
    rank = dist.get_rank()
    if rank == 0:
        own = {(name, 0): local[name].tensor for name, _ in batch.by_rank.get(0, [])}
        by_rank = {rank: parts for rank, parts in batch.by_rank.items() if rank}
        messages = {rank: _message(rank, parts, local) for rank, parts in by_rank.items()}
        works = _start(dist.P2POp(dist.irecv, message, rank) for rank, message in messages.items())
        others = [_unpack(rank, parts, messages[rank]) for rank, parts in by_rank.items()]
        return _Coming(works, functools.reduce(operator.or_, others, own))
    if rank not in batch.by_rank:
        return _Coming([], {})
    message = _message(rank, batch.by_rank[rank], local)
    return _Coming(_start([dist.P2POp(dist.isend, message, 0)]), {}, message)


def _start(operations: Iterable[dist.P2POp]) -> list[dist.Work]:
    together = list(operations)
    return dist.batch_isend_irecv(together) if together else []


def _by_rank(bucket: Sequence[Entry], owners: Owners) -> dict[int, _Parts]:
    """Who sends what, wide dtypes first: in such a message every shard starts at a multiple of its item size."""
    by_rank: dict[int, list[tuple[str, _Owned]]] = defaultdict(list)
    for entry in bucket:
        for part in owners[entry.megatron]:
            by_rank[part.rank].append((entry.megatron, part))
    return {rank: sorted(parts, key=lambda named: -named[1].dtype.itemsize) for rank, parts in by_rank.items()}


def _unpack(rank: int, parts: _Parts, message: torch.Tensor) -> dict[_Key, torch.Tensor]:
    shards = torch.split(message, [part.num_bytes for _, part in parts])
    return {
        (name, rank): shard.view(part.dtype).view(part.shape) for (name, part), shard in zip(parts, shards, strict=True)
    }


def _as_bytes(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors])


@torch.no_grad()
def _assemble(batch: _Batch, received: Received) -> Sequence[torch.Tensor]:
    """The whole HF tensors of a batch, from its shards."""
    device = next(iter(received.values())).device
    whole = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in batch.forms]
    targets, sources = [], []
    for block in batch.blocks:
        piece = block.piece
        targets.append(_rows(whole[piece.index], block.dim, piece.source, piece.length))
        sources.append(_rows(received[block.shard], block.dim, piece.target, piece.length))
    copy_all(targets, sources)
    return whole


def _rows(tensor: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    return tensor if length == tensor.size(dim) else tensor.narrow(dim, start, length)
