"""Loads a Hugging Face checkpoint into Megatron modules: each rank reads only the rows it holds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slime.errors import SlimeError
from slime.models.mapping import Piece, WeightMapping
from slime.weights.file_tensors import FileTensor
from slime.weights.hf_check import LOADED, check_tensors, untied
from slime.weights.hf_files import HfFiles
from slime_megatron.train.weights.local import LocalTensor, local_tensors


@dataclass(frozen=True)
class _Read:
    """A block of one HF tensor on its way into a parameter."""

    target: LocalTensor
    piece: Piece


def load_hf(modules: Sequence[torch.nn.Module], mapping: WeightMapping, folder: Path) -> None:
    """Copy the checkpoint in `folder` into this rank's modules, one block of one tensor at a time.

    Values are converted to each parameter's own dtype; vocabulary padding becomes zero. Nothing is written before
    every name, shape and dtype has been checked. Needs no communication. Resident memory, pages of mapped files
    included, grows by less than twice the checkpoint's largest tensor.

    Args:
        modules: the rank's `GPTModel`s, one a virtual pipeline stage.
        mapping: of the model as built; a checkpoint with more layers is cut.
        folder: HF folder with config.json and safetensors.

    Raises:
        SlimeError: a torn file, or a tensor that is missing, unexpected, of another shape or dtype, or no number.
    """
    files = HfFiles(folder)
    check_tensors(files, mapping)
    present = mapping.hf_names & files.tensors.keys()
    _check_tied(files, mapping, modules)
    targets = [target for target in local_tensors(modules, mapping).values() if present.issuperset(target.entry.hf)]
    by_file = _plan(files, targets)
    num_bytes = {name: _num_bytes(files.tensors[name]) for name in present}
    for target in targets:
        _zero_padding(target)
    for file, tensors in sorted(by_file.items()):
        for names in _at_once(tensors, num_bytes):
            with files.open(file) as opened, torch.no_grad():
                for name in names:
                    for read in tensors[name]:
                        _copy(opened.get_slice(files.tensors[name].stored_as or name), read)
                        if not _is_finite(read):
                            raise _not_finite(files, name, read)


def reads(files: HfFiles, target: LocalTensor) -> list[tuple[str, Piece]]:
    """The blocks of HF tensors that make up a parameter, by the tensor's name.

    Raises:
        SlimeError: a tensor has another shape.
    """
    layout, names = target.entry.rule.layout, target.entry.hf
    for name, shape in zip(names, layout.hf_shapes(target.tensor.shape, target.shard), strict=True):
        _check_shape(files, name, shape)
    pieces = layout.pieces(target.tensor.shape[target.shard.dim], target.shard)
    return [(names[piece.index], piece) for piece in pieces]


def _at_once(names: Iterable[str], num_bytes: Mapping[str, int]) -> Iterator[list[str]]:
    """Names of tensors to read before their file is closed, which is when its pages leave this process.

    Args:
        num_bytes: of every tensor of the model; those read at once have no more than the largest.
    """
    limit = max(num_bytes.values())
    held: list[str] = []
    filled = 0
    for name in names:
        if held and filled + num_bytes[name] > limit:
            yield held
            held, filled = [], 0
        held.append(name)
        filled += num_bytes[name]
    yield held


def _num_bytes(tensor: FileTensor) -> int:
    return math.prod(tensor.shape) * LOADED[tensor.dtype]


def _plan(files: HfFiles, targets: Iterable[LocalTensor]) -> dict[str, dict[str, list[_Read]]]:
    """What to read, by file and tensor. Shapes are checked on the way."""
    by_file: dict[str, dict[str, list[_Read]]] = defaultdict(lambda: defaultdict(list))
    for target in targets:
        for name, piece in reads(files, target):
            by_file[files.tensors[name].file][name].append(_Read(target, piece))
    return by_file


def _zero_padding(target: LocalTensor) -> None:
    """Rows behind the vocabulary belong to no token; all others are about to be read."""
    if target.entry.rule.layout.num_rows is not None:
        target.tensor.data.zero_()


def _copy(source: Any, read: _Read) -> None:
    """Read the piece's rows (or columns) only, and write them where they belong."""
    piece, dim = read.piece, read.target.shard.dim
    rows = slice(piece.source, piece.source + piece.length)
    block = source[rows] if dim == 0 else source[:, rows]
    read.target.tensor.narrow(dim, piece.target, piece.length).copy_(block)


def _is_finite(read: _Read) -> bool:
    """Whether what was read is numbers: a sum is fast to find, and finite where all are, unless they are huge."""
    values = read.target.tensor.narrow(read.target.shard.dim, read.piece.target, read.piece.length)
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def _not_finite(files: HfFiles, name: str, read: _Read) -> SlimeError:
    what = f"'{name}' has values that are NaN or infinite, in the file or in {read.target.tensor.dtype}"
    todo = "Download the checkpoint again; if it was trained, take an earlier one: what is broken does not heal."
    return SlimeError(what, where=str(files.folder / files.tensors[name].file), todo=todo)


def _check_tied(files: HfFiles, mapping: WeightMapping, modules: Sequence[torch.nn.Module]) -> None:
    """Whether copies of tied tensors that are stored in another dtype are equal as the model holds them."""
    for copy, name in mapping.tied.items():
        one, other = (files.tensors.get(each) for each in (copy, name))
        if one and other and one.dtype != other.dtype:
            dtype = next((parameter.dtype for module in modules for parameter in module.parameters()), torch.float32)
            with files.open(one.file) as first, files.open(other.file) as second:
                values = first.get_tensor(copy), second.get_tensor(name)
                if one.shape != other.shape or not torch.equal(*(each.to(dtype) for each in values)):
                    raise untied(files, copy, name)


def _check_shape(files: HfFiles, name: str, shape: tuple[int, ...]) -> None:
    found = files.tensors[name]
    if found.shape != shape:
        raise SlimeError(
            f"'{name}' has shape {list(found.shape)}, the model needs {list(shape)}",
            where=str(files.folder / found.file),
            todo="Its config.json belongs to another checkpoint.",
        )
