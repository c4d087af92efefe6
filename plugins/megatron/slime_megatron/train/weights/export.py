"""Gathers Megatron's parameters into whole Hugging Face tensors, bit for bit, a bucket at a time.

Every shard travels once, from a rank that holds it straight to where its bucket is wanted, many small ones in one
message: to rank 0, to every rank, or by turns to the ranks that hold something of it. Where engines hold weights in
fewer bits, shards are quantised before they travel. Receivers hand the tensors to engines, or rank 0 writes them as a
folder that transformers loads (`slime_megatron.train.weights.save_hf`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TypeVar

import torch
import torch.distributed as dist

from slime.models.mapping import WeightMapping
from slime.topology.quantization import WeightFormat
from slime.weights.portions import Portion, Receivers
from slime.weights.quantized import Quantizer, parts_of, quantized
from slime_megatron.train.weights.export_plan import Block, Holders, Holding, PlannedBucket, Planner, holders
from slime_megatron.train.weights.local import LocalTensor, local_tensors
from weight_buckets.views import Named, copy_all, packed, views

BUCKET_BYTES = 256 * 2**20
"""Tensors that are on their way at once, in bytes; one larger parameter travels alone."""

Values = dict[Block, list[torch.Tensor]]


@dataclass(frozen=True)
class Inventory:
    """This rank's weights by name, and who holds what of all. It serves for the life of the modules: training,
    loading and offloading change their tensors in place."""

    local: Mapping[str, LocalTensor]
    holders: Holders
    _plans: dict[object, Sequence[PlannedBucket]] = field(default_factory=dict)

    def export(
        self,
        mapping: WeightMapping,
        bucket_bytes: int,
        receivers: Receivers,
        *,
        drafts: bool = True,
        quantizer: Quantizer | None = None,
        merged: bool = True,
    ) -> Export:
        """An export of everything the mapping exports; what it does with these arguments is thought out once.

        Args:
            bucket_bytes: of a bucket as it is received. What SGLang loads in one call comes in one bucket.
            receivers: among whom buckets are divided (`Planner`), or None: every rank receives all.
            drafts: the part that drafts too, for which an engine that does not speculate has no place.
            quantizer: makes what engines hold; None: they hold the weights as they are.
            merged: what adapters add is in the weights.

        Raises:
            SlimeError: the mapping names a parameter that no rank has.
        """
        key = bucket_bytes, receivers, drafts, quantizer is None
        if key not in self._plans:
            form = quantizer.form if quantizer else None
            entries = [entry for entry in mapping.entries if entry.rule.exported and (drafts or not entry.rule.drafts)]
            self._plans[key] = Planner(self.holders, bucket_bytes, receivers, form).plan(entries)
        local = self.local if merged else {name: replace(held, layer=None) for name, held in self.local.items()}
        return Export(local, self._plans[key], quantizer)


@dataclass(frozen=True)
class Export:
    """All buckets of an export, the same on every rank."""

    local: Mapping[str, LocalTensor]
    buckets: Sequence[PlannedBucket]
    quantizer: Quantizer | None

    @property
    def receivers(self) -> list[int | None]:
        """Who receives a bucket."""
        return list(dict.fromkeys(bucket.receiver for bucket in self.buckets))

    def run(self) -> Iterator[Portion]:
        """The tensors of each bucket that this rank receives; collective over the default process group.

        Every rank runs through it to the end. Tensors have the dtype and device of their parameters, or are quantised,
        and belong to the caller. Peak memory of a receiver: about three times the bytes of a bucket, or of the largest
        parameters, what the caller keeps aside; other ranks hold what they send of two buckets.
        """
        started = ((bucket, _start(bucket, self.local, self.quantizer)) for bucket in self.buckets)
        for bucket, coming in _prefetched(started):
            values = coming.take()
            if values is not None:
                whole = assemble(bucket, values, self.quantizer)
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
    quantizer: Quantizer | None = None,
    inventory: Inventory | None = None,
) -> Iterator[Named]:
    """As `Inventory.export`, tensor by tensor, to rank 0 or to all, in the order of the mapping whatever the layout.

    On ranks that receive nothing the iterator is empty, and must be run through (`slime.weights.portions.drain`).
    """
    inventory = inventory or take_inventory(modules, mapping)
    receivers = None if everywhere else (0,)
    for tensors, _ in inventory.export(mapping, bucket_bytes, receivers, quantizer=quantizer).run():
        yield from tensors


T = TypeVar("T")


def _prefetched(started: Iterator[T]) -> Iterator[T]:
    """What an iterator yields, each when the next has been started."""
    before = next(started, None)
    while before is not None:
        following = next(started, None)
        yield before
        before = following


@dataclass
class _Coming:
    """A bucket on its way; what a rank sends must live until it has arrived."""

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


def _start(bucket: PlannedBucket, local: Mapping[str, LocalTensor], quantizer: Quantizer | None) -> _Coming:
    """Begin to move a bucket: a message from each rank that has something of it, to the receiver or by broadcast."""
    rank, to_all = dist.get_rank(), bucket.receiver is None
    receives = to_all or bucket.receiver == rank
    device = next(iter(local.values())).tensor.device
    values = read_blocks(bucket.supplied(rank), local, quantizer)
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
def read_blocks(blocks: Sequence[Block], local: Mapping[str, LocalTensor], quantizer: Quantizer | None) -> Values:
    """Blocks of this rank, quantised where they are to be."""
    whole = {name: local[name].published for name in dict.fromkeys(block.parameter for block in blocks)}
    rows = [_rows(whole[block.parameter], block.dim, block.piece.target, block.piece.length) for block in blocks]
    if not quantizer:
        return {block: [each] for block, each in zip(blocks, rows, strict=True)}
    matrices = [each for block, each in zip(blocks, rows, strict=True) if block.is_quantized]
    done = iter(quantizer.quantize(matrices))
    return {block: list(next(done)) if block.is_quantized else [each] for block, each in zip(blocks, rows, strict=True)}


def _message(blocks: Sequence[Block], device: torch.device) -> tuple[torch.Tensor, Values]:
    """Memory in which blocks travel, and their place there."""
    places = packed(form for block in blocks for form in block.sent)
    memory = torch.empty(places[-1].end, dtype=torch.uint8, device=device)
    parts = iter(views(memory, places))
    return memory, {block: list(islice(parts, len(block.sent))) for block in blocks}


def _flat(parts: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return list(chain.from_iterable(parts))


@torch.no_grad()
def assemble(bucket: PlannedBucket, values: Values, quantizer: Quantizer | None) -> list[Named]:
    """The whole HF tensors of a bucket, from its blocks."""
    device, form = next(iter(values.values()))[0].device, quantizer.form if quantizer else None
    in_parts = {block.piece.index for block in bucket.blocks if block.is_quantized}
    whole: list[list[Named]] = []
    for index, (name, (shape, dtype)) in enumerate(bucket.tensors):
        forms = parts_of(form, name, shape) if form and index in in_parts else [(name, (shape, dtype))]
        whole.append([(part, torch.empty(size, dtype=kind, device=device)) for part, (size, kind) in forms])
    targets, sources = [], []
    for block in bucket.blocks:
        starts = _starts(block, bucket.tensors[block.piece.index][1][0], form)
        for (_, target), start, source in zip(whole[block.piece.index], starts, values[block], strict=True):
            targets.append(_rows(target, block.dim, start, source.size(block.dim)))
            sources.append(source)
    copy_all(targets, sources)
    made = [named for of_tensor in whole for named in of_tensor]
    return quantized(made, quantizer) if quantizer else made


def _starts(block: Block, shape: Sequence[int], form: WeightFormat | None) -> list[int]:
    """Where a block's rows begin in the HF tensor of this shape; quantised, where they begin in each part of it."""
    if not (form and block.is_quantized):
        return [block.piece.source]
    before = (*shape[: block.dim], block.piece.source, *shape[block.dim + 1 :])
    return [part.shape[block.dim] for part in form.parts(before)]


def _rows(tensor: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    return tensor if length == tensor.size(dim) else tensor.narrow(dim, start, length)
