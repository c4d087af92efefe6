"""Loads a Hugging Face checkpoint into Megatron modules: each rank reads only the rows it holds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from slime.errors import SlimeError
from slime.models.mapping import Piece, WeightMapping
from slime.weights.hf_check import LOADED, check_tensors, untied
from slime.weights.hf_files import HfFiles
from slime_megatron.train.weights.local import LocalTensor, local_tensors


def load_hf(modules: Sequence[torch.nn.Module], mapping: WeightMapping, folder: Path) -> None:
    """Copy the checkpoint in `folder` into this rank's modules, one block of one tensor at a time.

    Values are converted to each parameter's own dtype; vocabulary padding becomes zero. Nothing is written before
    every name, shape and dtype has been checked. Needs no communication. Resident memory, pages of mapped files
    included, grows by less than twice the checkpoint's largest tensor.

    Args:
        mapping: of the model as built; a checkpoint with more layers is cut.

    Raises:
        SlimeError: a torn file, or a tensor that is missing, unexpected, of another shape or dtype, or no number.
    """
    files = HfFiles(folder)
    check_tensors(files, mapping)
    present = mapping.hf_names & files.tensors.keys()
    _check_tied(files, mapping, modules)
    targets = [target for target in local_tensors(modules, mapping).values() if present.issuperset(target.entry.hf)]
    by_file: dict[str, dict[str, list[tuple[LocalTensor, Piece]]]] = defaultdict(lambda: defaultdict(list))
    for target in targets:
        for name, piece in reads(files, target):
            by_file[files.tensors[name].file][name].append((target, piece))
    of_present = {name: files.tensors[name] for name in present}
    num_bytes = {name: math.prod(each.shape) * LOADED[each.dtype] for name, each in of_present.items()}
    for target in targets:
        if target.entry.rule.layout.num_rows is not None:  # rows behind the vocabulary belong to no token
            target.tensor.data.zero_()
    for file, tensors in sorted(by_file.items()):
        for names in _at_once(tensors, num_bytes):
            with files.open(file) as opened, torch.no_grad():
                for name in names:
                    for target, piece in tensors[name]:
                        values = _copy(opened.get_slice(files.tensors[name].stored_as or name), target, piece)
                        if not _is_finite(values):
                            raise _not_finite(files, name, values)


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


def _copy(source: Any, target: LocalTensor, piece: Piece) -> torch.Tensor:
    """Read the piece's rows (or columns) only, and return the part of the parameter where they are now."""
    dim, rows = target.shard.dim, slice(piece.source, piece.source + piece.length)
    values = target.tensor.narrow(dim, piece.target, piece.length)
    return values.copy_(source[rows] if dim == 0 else source[:, rows])


def _is_finite(values: torch.Tensor) -> bool:
    """Whether all are numbers: a sum is fast to find, and finite where all are, unless they are huge."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def _not_finite(files: HfFiles, name: str, values: torch.Tensor) -> SlimeError:
    what = f"'{name}' has values that are NaN or infinite, in the file or in {values.dtype}"
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
