"""A Megatron-core checkpoint (`torch_dist`) as an HF folder: a parameter at a time, whatever layout it was saved in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.config.schema import ClusterConfig, ModelConfig, TrainConfig
from slime.errors import SlimeError
from slime.models.mapping import Piece, WeightMapping
from slime.weights.hf_files import HfFiles
from slime_megatron.train import checkpoint, megatron
from slime_megatron.train.shards import only_data
from slime_megatron.train.weights.local import LocalTensor, local_tensors
from slime_megatron.train.weights.spellings import exported_config
from slime_tools.convert.job import Job
from slime_tools.convert.tensors import NAMES, Output, storage_of


@dataclass(frozen=True)
class Part:
    """A part of a parameter: the box at `offset` of size `box` of the checkpoint's tensor `key`, which is the view
    (`shape`, `strides`, `start`) of the parameter's memory."""

    key: str
    offset: tuple[int, ...]
    box: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Parameter:
    """A whole Megatron parameter, and the HF tensors (`names`, of `shapes`) that its rows along `dim` are."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[Part, ...]
    dim: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    pieces: tuple[Piece, ...]


def to_hf(
    folder: Path,
    destination: Path,
    model: ModelConfig,
    train: TrainConfig,
    cluster: ClusterConfig,
    identity: Mapping[str, Any],
) -> Job:
    """The job that writes the weights of a checkpoint as an HF folder.

    Args:
        folder: of the shards.
        model: which one it is of: its `path` has the config.json, tokenizer and so on.
        train, cluster: without parallelism.

    Raises:
        SlimeError: the folder is no checkpoint, or of another model.
    """
    hf = read_hf_config(model.path, model.num_layers)
    bridge = plugins.load().models.create(model.family)
    mapping = bridge.weight_mapping(hf)
    megatron.initialize_alone(cluster, train.megatron, seed=0)  # nothing is initialised
    facts, index = checkpoint.read_facts(folder), read_index(folder)
    if facts.get("base"):
        todo = "Take the run's export: continued with run.num_steps at the step it has, the run writes it."
        raise SlimeError("it holds adapters and no model", where=str(folder), todo=todo)
    built = megatron.skeleton(model, train, bridge, hf, on_gpus=cluster.on_gpus)
    parameters = _parameters(built, mapping, index, folder)
    source = resolve(model.path)
    originals = {**mapping.copies, **mapping.tied}
    copies = {name: originals[name] for name in _copies(facts, mapping, source)}
    outputs = [
        output
        for parameter in parameters
        for name, shape in zip(parameter.names, parameter.shapes, strict=True)
        for output in _with_copies(Output(name, NAMES[parameter.dtype], shape), copies)
    ]
    config = exported_config(hf, str(parameters[0].dtype).removeprefix("torch."))
    return Job(source, destination, config, outputs, partial(FromDist, folder, parameters, copies), identity)


def read_index(folder: Path) -> Metadata:
    """Which part of which tensor lies where.

    Raises:
        SlimeError: there is none, or it is more than data.
    """
    if not (folder / ".metadata").is_file():
        todo = "Name a run directory, or a folder that hf-to-dist wrote."
        raise SlimeError("there is no checkpoint of Megatron-core (torch_dist)", where=str(folder), todo=todo)
    with only_data(folder):
        return FileSystemReader(folder).read_metadata()


def _parameters(model: megatron.Model, mapping: WeightMapping, index: Metadata, folder: Path) -> list[Parameter]:
    """Every parameter that is exported, in the order of the mapping."""
    targets = local_tensors(model.modules, mapping)
    parts: dict[int, list[ShardedTensor]] = {}
    state = checkpoint.sharded(model)
    apply_factories(state)
    for value in nested_values(state):
        if isinstance(value, ShardedTensor):
            parts.setdefault(storage_of(value.data), []).append(value)
    found = []
    for entry in mapping.entries:
        if entry.rule.exported:
            target = targets[entry.megatron]
            found.append(_parameter(target, parts[storage_of(target.tensor)], index, folder))
    return found


def _parameter(target: LocalTensor, sharded: Sequence[ShardedTensor], index: Metadata, folder: Path) -> Parameter:
    layout, tensor = target.entry.rule.layout, target.tensor
    dtypes = {_saved(each, index, folder).properties.dtype for each in sharded}
    assert len(dtypes) == 1, f"{target.entry.megatron} has one dtype"
    parts = [
        Part(
            each.key,
            tuple(each.global_offset),
            (1,) * each.prepend_axis_num + tuple(each.local_shape),
            tuple(each.data.shape),
            each.data.stride(),
            int(each.data.storage_offset()),
        )
        for each in sharded
    ]
    return Parameter(
        tuple(tensor.shape),
        dtypes.pop(),
        tuple(parts),
        target.shard.dim,
        target.entry.hf,
        tuple(layout.hf_shapes(tensor.shape, target.shard)),
        tuple(layout.pieces(tensor.shape[target.shard.dim], target.shard)),
    )


def _saved(each: ShardedTensor, index: Metadata, folder: Path) -> TensorStorageMetadata:
    saved = index.state_dict_metadata.get(each.key)
    if not isinstance(saved, TensorStorageMetadata) or tuple(saved.size) != tuple(each.global_shape):
        found = f"has shape {list(saved.size)}" if isinstance(saved, TensorStorageMetadata) else "is missing"
        what = f"'{each.key}' {found}, the model's has {list(each.global_shape)}"
        raise SlimeError(what, where=str(folder), todo="Name the checkpoint of the model that config.json describes.")
    return saved


def _copies(facts: Mapping[str, Any], mapping: WeightMapping, source: Path) -> Iterable[str]:
    """Tensors that are written a second time: those that the HF folder had which it all began with."""
    if "copies" in facts:
        return list(facts["copies"])
    has_weights = mapping.copies and any(source.glob("*.safetensors"))
    return sorted(mapping.copies.keys() & HfFiles(source).tensors.keys()) if has_weights else []


def _with_copies(output: Output, copies: Mapping[str, str]) -> Iterator[Output]:
    yield output
    for copy, name in copies.items():
        if name == output.name:
            yield Output(copy, output.dtype, output.shape)


class FromDist:
    """The values of HF tensors from a checkpoint's shards. One parameter and one HF tensor are in memory at a time."""

    def __init__(self, folder: Path, parameters: Sequence[Parameter], copies: Mapping[str, str]) -> None:
        self._folder, self._index, self._copies = folder, read_index(folder), copies
        self._places = {
            name: (parameter, number) for parameter in parameters for number, name in enumerate(parameter.names)
        }
        self._held: tuple[Parameter, Tensor] | None = None

    def values(self, name: str) -> Iterator[Tensor]:
        parameter, number = self._places[self._copies.get(name, name)]
        if self._held is None or self._held[0] is not parameter:
            self._held = None
            self._held = parameter, self._read(parameter)
        yield _hf_tensor(parameter, self._held[1], number)

    def _read(self, parameter: Parameter) -> Tensor:
        if len(parameter.parts) == 1 and parameter.parts[0].shape == parameter.shape:
            return self._box(parameter.parts[0], parameter.dtype).view(parameter.shape)
        whole = torch.empty(parameter.shape, dtype=parameter.dtype)
        for part in parameter.parts:
            view = whole.as_strided(part.shape, part.strides, part.start)
            view.copy_(self._box(part, parameter.dtype).view(part.shape))
        return whole

    def _box(self, part: Part, dtype: torch.dtype) -> Tensor:
        saved = self._index.state_dict_metadata[part.key]
        assert isinstance(saved, TensorStorageMetadata), "it was looked up when the job was made"
        wanted = ChunkStorageMetadata(torch.Size(part.offset), torch.Size(part.box))
        items = create_read_items_for_chunk_list(part.key, saved, [wanted])
        if len(items) == 1 and items[0].lengths == wanted.sizes:
            return _narrowed(self._chunk(items[0]), items[0].storage_offsets, items[0].lengths)
        box = torch.empty(part.box, dtype=dtype)
        for item in items:
            target = _narrowed(box, item.dest_offsets, item.lengths)
            target.copy_(_narrowed(self._chunk(item), item.storage_offsets, item.lengths))
        return box

    def _chunk(self, item: ReadItem) -> Tensor:
        """A chunk as it was saved; the checkpoint may be a stranger's, so it is read as data alone."""
        place = self._index.storage_data[item.storage_index]
        reader = FileSystemReader(self._folder)
        with (self._folder / place.relative_path).open("rb") as file:
            view: Any = reader._slice_file(file, place)
            chunk: Tensor = torch.load(view, map_location="cpu", weights_only=True)
        return chunk


def _narrowed(tensor: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    for dim, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dim, offset, length)
    return tensor


def _hf_tensor(parameter: Parameter, values: Tensor, number: int) -> Tensor:
    pieces = [piece for piece in parameter.pieces if piece.index == number]
    shape, dim = parameter.shapes[number], parameter.dim
    if len(pieces) == 1 and pieces[0].length == shape[dim]:
        return values.narrow(dim, pieces[0].target, pieces[0].length)
    whole = torch.empty(shape, dtype=parameter.dtype)
    for piece in pieces:
        whole.narrow(dim, piece.source, piece.length).copy_(values.narrow(dim, piece.target, piece.length))
    return whole
