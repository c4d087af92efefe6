"""An HF folder as a Megatron-core checkpoint (`torch_dist`), in any layout, without a model in memory.

Each rank builds modules that have names and shapes and no values. Megatron-core plans from them what the rank writes;
the values of a parameter are read from the HF folder when its turn comes, in the dtype that they have there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.strategies.torch import MCoreSavePlanner
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.schema import ModelConfig, SlimeConfig
from slime.digest import FileFacts
from slime.errors import SlimeError
from slime.models.mapping import Piece
from slime.weights.hf_check import check_tensors, stand_in
from slime.weights.hf_files import HfFiles
from slime_megatron.train import checkpoint, megatron
from slime_megatron.train.shards import ShardFiles, ShardWriter
from slime_megatron.train.weights.load import reads
from slime_megatron.train.weights.local import LocalTensor, local_tensors
from slime_megatron.train.weights.save_hf import SHARD_BYTES, copy_companions
from slime_tools.convert.hosts import PATIENCE, here, started, under_torchrun
from slime_tools.convert.job import check_room, progress_of
from slime_tools.convert.layout import Layout, check_layout, ranks_to_start
from slime_tools.convert.staging import Staging, identity_of, require_absent
from slime_tools.convert.tensors import DTYPES, PIECE_BYTES, TensorReader, num_bytes, storage_of
from weight_buckets.bucket import in_buckets


def convert(source: Path, destination: Path, layout: Layout, processes: int, file_bytes: int = SHARD_BYTES) -> None:
    """Write the checkpoint on at least as many ranks as the layout needs, or on torchrun's.

    Args:
        file_bytes: of a file that a rank writes, unless a tensor is larger: what a killed conversion does again.

    Raises:
        SlimeError: the source is not a checkpoint of an installed family, or does not fit its config.json; the layout
            does not fit the model; the destination exists, or the disk is full.
    """
    require_absent(destination)
    files, hf = HfFiles(source), read_hf_config(str(source))
    bridge = plugins.load().models.create(hf["model_type"])
    check_tensors(files, bridge.weight_mapping(hf))
    num_ranks = int(os.environ["WORLD_SIZE"]) if under_torchrun() else ranks_to_start(layout, processes)
    check_layout(layout, num_ranks, hf, bridge)
    if under_torchrun():
        here(_convert, source, destination, layout, file_bytes)
        return
    total = sum(num_bytes(tensor.dtype, tensor.shape) for tensor in files.tensors.values())
    staging = Staging(destination, {})
    check_room(destination, total - staging.written_bytes())
    with progress_of(staging, total) as progress:
        started(_convert, num_ranks, progress, source, destination, layout, file_bytes)


def _convert(
    rank: int, world_size: int, store: Any, source: Path, destination: Path, layout: Layout, file_bytes: int
) -> None:
    files, hf = HfFiles(source), read_hf_config(str(source))
    model_type = hf["model_type"]
    cfg = SlimeConfig(model=ModelConfig(name=model_type, family=model_type, path=str(source)))
    cfg.train.megatron = dict(layout)
    cfg.cluster.hang_timeout_s = PATIENCE.total_seconds()
    bridge = plugins.load().models.create(model_type)
    mapping = bridge.weight_mapping(hf)
    stand_in(files, mapping)
    torch.set_num_threads(1)
    megatron.join(cfg.cluster, rank, world_size, PrefixStore("slime", store))
    megatron.make_groups(layout, cfg.run.seed)
    model = megatron.skeleton(cfg.model, cfg.train, bridge, hf, on_gpus=cfg.cluster.on_gpus)
    buffers = {storage_of(buffer) for module in model.modules for buffer in module.buffers()}
    weights = _Weights(files, local_tensors(model.modules, mapping).values(), buffers)
    dist.barrier()  # nothing is written before every rank has checked its part
    identity = {
        "conversion": "hf-to-dist",
        "layout": dict(layout),
        "num_ranks": world_size,
        "file_bytes": file_bytes,
    }
    staging = Staging(destination, {**identity, **identity_of(source, files)})
    staging.join() if rank else staging.open()
    logging.getLogger("megatron.core.dist_checkpointing").setLevel(logging.ERROR)  # it warns of what it goes on from
    copies = sorted((mapping.copies.keys() | mapping.tied.keys()) & files.tensors.keys())
    checkpoint.save_weights(staging.files, model, _Writer(staging, weights, file_bytes), {"copies": copies})
    if rank == 0:
        copy_companions(source, staging.files)
        staging.publish()
    dist.barrier()


class _Weights:
    """Reads parameters from an HF folder. One is in memory at a time.

    Args:
        targets: the rank's parameters and buffers, without values; parameters get the dtypes that the folder has.
        buffers: the memory of the latter; they keep the dtype that the model computes with, which Megatron-core would
            give back to them in the moment when it saves them.
    """

    def __init__(self, files: HfFiles, targets: Iterable[LocalTensor], buffers: Collection[int]) -> None:
        self._reader = TensorReader(files)
        self._reads: dict[int, tuple[LocalTensor, list[tuple[str, Piece]]]] = {}
        self._held: tuple[int, Tensor] | None = None
        for target in targets:
            each = reads(files, target)
            if storage_of(target.tensor) not in buffers:
                target.tensor.data = torch.empty_like(target.tensor, dtype=_dtype(files, target))
            self._reads[storage_of(target.tensor)] = target, each

    def values(self, part: Tensor) -> Tensor:
        """The values of a part of a parameter: of that view of its memory which `part` is."""
        storage = storage_of(part)
        if self._held is None or self._held[0] != storage:
            if self._held:
                # torch's writer keeps the last one until it has this one
                self._held[1].untyped_storage().resize_(0)
            self._held = storage, self._read(*self._reads[storage])
        return self._held[1].as_strided(part.size(), part.stride(), part.storage_offset())

    def _read(self, target: LocalTensor, pieces: Sequence[tuple[str, Piece]]) -> Tensor:
        dim = target.shard.dim
        is_padded = target.entry.rule.layout.num_rows is not None
        whole = (torch.zeros if is_padded else torch.empty)(target.tensor.shape, dtype=target.tensor.dtype)
        for name, piece in pieces:
            block = whole.narrow(dim, piece.target, piece.length)
            if whole.dtype is not DTYPES[self._reader.tensors[name].dtype]:  # a buffer
                block.copy_(self._reader.rows(name).narrow(dim, piece.source, piece.length))
            elif dim == 0:
                self._reader.read_into(block, name, piece.source)
            else:
                self._read_columns(block, name, piece)
        return whole

    def _read_columns(self, block: Tensor, name: str, piece: Piece) -> None:
        rows, columns = self._reader.tensors[name].shape
        height = max(1, PIECE_BYTES // (columns * block.element_size()))
        for start in range(0, rows, height):
            read = self._reader.rows(name, start, min(start + height, rows))
            block[start : start + height] = read[:, piece.source : piece.source + piece.length]


def _dtype(files: HfFiles, target: LocalTensor) -> torch.dtype:
    found = {files.tensors[name].dtype for name in target.entry.hf}
    if len(found) > 1:
        what = f"'{target.entry.hf[0]}' and those it goes together with have the dtypes {', '.join(sorted(found))}"
        raise SlimeError(what, where=str(files.folder), todo="Take a checkpoint that has one.")
    return DTYPES[found.pop()]


class _Writer(ShardWriter):
    def __init__(self, staging: Staging, weights: _Weights, file_bytes: int) -> None:
        super().__init__()
        self._staging, self._weights, self._file_bytes = staging, weights, file_bytes

    def writer(self, folder: str | Path) -> ShardFiles:
        return _Files(folder, self._staging, self._file_bytes)

    def planner(self) -> MCoreSavePlanner:
        return _Planner(self._weights)


class _Planner(MCoreSavePlanner):  # type: ignore[misc]
    def __init__(self, weights: _Weights) -> None:
        super().__init__(flatten_state_dict=False)
        self._weights = weights

    def resolve_data(self, write_item: WriteItem) -> Any:
        found = super().resolve_data(write_item)
        return self._weights.values(found) if isinstance(found, Tensor) else found


class _Files(ShardFiles):
    """Writes a rank's part as several files, those left out that are there already."""

    def __init__(self, folder: str | Path, staging: Staging, file_bytes: int) -> None:
        super().__init__(folder, num_threads=1)  # one parameter is in memory at a time
        self._staging, self._file_bytes = staging, file_bytes

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        runs = in_buckets(([item] for item in plan.items), self._file_bytes, num_bytes=lambda run: _size(run[0]))
        for number, items in enumerate(list(runs) or [[]]):
            prefix = f"{plan.storage_data.prefix}{number}_"
            part = replace(plan, items=items, storage_data=replace(plan.storage_data, prefix=prefix))
            name = f"{prefix}0.distcp"
            written = self._staging.complete(name, partial(self._write, part, planner))
            for item, (index, size, offset, length) in zip(items, written, strict=True):
                assert repr(item.index) == index, "the same conversion writes the same files"
                results.append(WriteResult(item.index, size, _StorageInfo(name, offset, length)))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _write(self, part: SavePlan, planner: SavePlanner, path: Path) -> tuple[FileFacts, Any]:
        results = {result.index: result for result in super().write_data(part, planner).value()}
        ordered = [results[item.index] for item in part.items]
        kept = [
            [repr(each.index), each.size_in_bytes, each.storage_data.offset, each.storage_data.length]
            for each in ordered
        ]
        return self.files.written[path.name], kept


def _size(item: WriteItem) -> int:
    if item.type is WriteItemType.BYTE_IO:
        return 0
    assert item.tensor_data is not None, "a tensor"
    return item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize
