"""Gathers Megatron's parameters into whole Hugging Face tensors, bit for bit, a bucket at a time.

Every shard travels once, from a rank that holds it straight to where its bucket is wanted, many small ones in one
message: to rank 0, to every rank, or by turns to the ranks that hold something of it. For engines in FP8 shards are
quantised where they are, and half the bytes travel. Receivers hand the tensors to engines, or rank 0 writes them as a
folder that transformers loads (`slime.weights.megatron.save_hf`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TypeVar

import torch
import torch.distributed as dist

from slime.config.fp8 import BLOCK, SCALE, Fp8Format
from slime.weights.megatron.export_plan import Block, Bucket, Holders, Holding, Planner, holders, in_fp8
from slime.weights.megatron.local import LocalTensor, local_tensors
from slime.weights.megatron.mapping import WeightMapping
from slime.weights.shared.fp8 import quantize
from slime.weights.shared.quantized import quantized
from slime.weights.shared.views import Named, copy_all, packed, views

BUCKET_BYTES = 256 * 2**20
"""Tensors that are on their way at once, in bytes; one larger parameter travels alone."""

Receivers = tuple[int, ...] | None
Portion = tuple[list[Named], bool]
"""Tensors of a bucket, and whether this rank receives nothing after them."""
Values = dict[Block, list[torch.Tensor]]


@dataclass(frozen=True)
class Inventory:
    """This rank's weights by name, and who holds what of all. It serves for the life of the modules: training,
    loading and offloading change their tensors in place."""

    local: Mapping[str, LocalTensor]
    holders: Holders
    _plans: dict[object, Sequence[Bucket]] = field(default_factory=dict)

    def export(
        self,
        mapping: WeightMapping,
        bucket_bytes: int,
        receivers: Receivers,
        *,
        drafts: bool = True,
        fp8: Fp8Format | None = None,
    ) -> Export:
        """An export of everything the mapping exports; what it does with these arguments is thought out once.

        Args:
            bucket_bytes: of a bucket as it is received. What SGLang loads in one call comes in one bucket.
            receivers: among whom buckets are divided (`Planner`), or None: every rank receives all.
            drafts: the part that drafts too, for which an engine that does not speculate has no place.
            fp8: quantise as a checkpoint of this format is.

        Raises:
            SlimeError: the mapping names a parameter that no rank has.
        """
        key = bucket_bytes, receivers, drafts, fp8 is None
        if key not in self._plans:
            entries = [entry for entry in mapping.entries if entry.rule.exported and (drafts or not entry.rule.drafts)]
            self._plans[key] = Planner(self.holders, bucket_bytes, receivers, fp8).plan(entries)
        return Export(self.local, self._plans[key], fp8)


@dataclass(frozen=True)
class Export:
    """All buckets of an export, the same on every rank."""

    local: Mapping[str, LocalTensor]
    buckets: Sequence[Bucket]
    fp8: Fp8Format | None

    @property
    def receivers(self) -> list[int | None]:
        """Who receives a bucket."""
        return list(dict.fromkeys(bucket.receiver for bucket in self.buckets))

    def run(self) -> Iterator[Portion]:
        """The tensors of each bucket that this rank receives; collective over the default process group.

        Every rank runs through it to the end. Tensors have the dtype and device of their parameters, or are in FP8,
        and belong to the caller. Peak memory of a receiver: about three times the bytes of a bucket, or of the largest
        parameters, what the caller keeps aside; other ranks hold what they send of two buckets.
        """
        for bucket, coming in _prefetched((bucket, _start(bucket, self.local, self.fp8)) for bucket in self.buckets):
            values = coming.take()
            if values is not None:
                whole = assemble(bucket, values, self.fp8)
                del values  # the caller may keep what it gets for long
                yield whole, bucket.last


def take_inventory(modules: Sequence[torch.nn.Module], mapping: WeightMapping) -> Inventory:
    """Who holds what; collective, the one exchange of metadata."""
    local = local_tensors(modules, mapping)
    mine = {
        name: Holding(held.shard, tuple(held.tensor.shape), held.tensor.dtype, held.is_copy)
        for name, held in local.items()
    }
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return Inventory(local, holders(told))


def export_hf(
    modules: Sequence[torch.nn.Module],
    mapping: WeightMapping,
    bucket_bytes: int = BUCKET_BYTES,
    *,
    everywhere: bool = False,
    fp8: Fp8Format | None = None,
    inventory: Inventory | None = None,
) -> Iterator[Named]:
    """As `Inventory.export`, tensor by tensor, to rank 0 or to all, in the order of the mapping whatever the layout.

    On ranks that receive nothing the iterator is empty, and must be run through (`drain`).

    Args:
        modules: the rank's `GPTModel`s, one a virtual pipeline stage.
        inventory: of `take_inventory`, if it was asked before.
    """
    inventory = inventory or take_inventory(modules, mapping)
    receivers = None if everywhere else (0,)
    for tensors, _ in inventory.export(mapping, bucket_bytes, receivers, fp8=fp8).run():
        yield from tensors


T = TypeVar("T")


def _prefetched(started: Iterator[T]) -> Iterator[T]:
    """What an iterator yields, each when the next has been started."""
    before = next(started, None)
    while before is not None:
        following = next(started, None)
        yield before
        before = following


def drain(tensors: Iterator[object]) -> None:
    """Take part in an export to its end."""
    for _ in tensors:
        pass


@dataclass
class _Coming:
    """A bucket on its way; what a rank sends must live until it has arrived.

    Attributes:
        values: of a receiver.
    """

    works: Sequence[dist.Work]
    messages: list[torch.Tensor]
    values: Values | None

    def take(self) -> Values | None:
        """Wait for it and let go of it: its memory lives as long as the caller needs it."""
        for work in self.works:
            work.wait()
        values = self.values
        self.works, self.messages, self.values = [], [], None
        return values


def _start(bucket: Bucket, local: Mapping[str, LocalTensor], fp8: Fp8Format | None) -> _Coming:
    """Begin to move a bucket: a message from each rank that has something of it, to the receiver or by broadcast."""
    rank, to_all = dist.get_rank(), bucket.receiver is None
    receives = to_all or bucket.receiver == rank
    device = next(iter(local.values())).tensor.device
    values = read_blocks(bucket.supplied(rank), local, fp8)
    works, operations, messages = [], [], []
    for sender, blocks in bucket.messages.items():
        if sender != rank and not receives:
            continue
        message, parts = _message(blocks, device)
        messages.append(message)
        if sender == rank:
            copy_all(_flat(parts.values()), _flat(values[block] for block in blocks))
        else:
            values |= parts
        if to_all:
            works.append(dist.broadcast(message, src=sender, async_op=True))
        else:
            operation, peer = (dist.isend, bucket.receiver) if sender == rank else (dist.irecv, sender)
            operations.append(dist.P2POp(operation, message, peer))
    works += dist.batch_isend_irecv(operations) if operations else []
    return _Coming(works, messages, values if receives else None)


@torch.no_grad()
def read_blocks(blocks: Sequence[Block], local: Mapping[str, LocalTensor], fp8: Fp8Format | None) -> Values:
    """Blocks of this rank, quantised where they are to be."""
    rows = [
        _rows(local[block.parameter].tensor.detach(), block.dim, block.piece.target, block.piece.length)
        for block in blocks
    ]
    if not fp8:
        return {block: [each] for block, each in zip(blocks, rows, strict=True)}
    matrices = [each for block, each in zip(blocks, rows, strict=True) if block.in_fp8]
    done = iter(quantize(matrices, powers_of_two=fp8.powers_of_two))
    return {block: list(next(done)) if block.in_fp8 else [each] for block, each in zip(blocks, rows, strict=True)}


def _message(blocks: Sequence[Block], device: torch.device) -> tuple[torch.Tensor, Values]:
    """Memory in which blocks travel, and their place there."""
    places = packed(form for block in blocks for form in block.sent)
    memory = torch.empty(places[-1].end, dtype=torch.uint8, device=device)
    parts = iter(views(memory, places))
    return memory, {block: list(islice(parts, len(block.sent))) for block in blocks}


def _flat(parts: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return list(chain.from_iterable(parts))


@torch.no_grad()
def assemble(bucket: Bucket, values: Values, fp8: Fp8Format | None) -> list[Named]:
    """The whole HF tensors of a bucket, from its blocks."""
    device = next(iter(values.values()))[0].device
    in_blocks = {block.piece.index for block in bucket.blocks if block.in_fp8}
    whole = [
        [
            torch.empty(shape, dtype=dtype, device=device)
            for shape, dtype in (in_fp8(form) if index in in_blocks else [form])
        ]
        for index, (_, form) in enumerate(bucket.tensors)
    ]
    targets, sources = [], []
    for block in bucket.blocks:
        piece, parts = block.piece, values[block]
        targets.append(_rows(whole[piece.index][0], block.dim, piece.source, piece.length))
        sources.append(parts[0])
        if block.in_fp8:
            start, length = piece.source // BLOCK, parts[1].size(block.dim)
            targets.append(_rows(whole[piece.index][1], block.dim, start, length))
            sources.append(parts[1])
    copy_all(targets, sources)
    names = [name for name, _ in bucket.tensors]
    made = [
        (name + end, each)
        for name, of in zip(names, whole, strict=True)
        for end, each in zip(("", SCALE), of, strict=False)
    ]
    return quantized(made, fp8) if fp8 else made


def _rows(tensor: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    return tensor if length == tensor.size(dim) else tensor.narrow(dim, start, length)
