"""FP8 checkpoints to BF16 and back: rows of a weight at a time, all other tensors byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slime.config.hf import QUANTIZATION, read_hf_config
from slime.errors import SlimeError
from slime.weights.file_tensors import FileTensor
from slime.weights.hf_files import HfFiles, HfTensors
from slime_megatron.fp8_block import blocks
from slime_megatron.fp8_block.config import BLOCK, PLAIN, SCALE, Fp8Format
from slime_tools.convert.job import Job
from slime_tools.convert.schemes import FP8, Scheme, Strategy, is_scale, quantized_weights, scheme_of, to_config
from slime_tools.convert.staging import identity_of
from slime_tools.convert.tensors import DTYPES, PIECE_BYTES, Output, TensorReader

_WIDE = ("BF16", "F16", "F32")


def to_bf16(source: Path, destination: Path) -> Job:
    """The job that writes an FP8 checkpoint's weights in BF16.

    Raises:
        SlimeError: the source is not FP8, or what its config.json says does not fit its tensors.
    """
    files, config = HfFiles(source), read_hf_config(str(source))
    scheme = scheme_of(config, files)
    outputs = wide_outputs(files, scheme)
    kept = {key: value for key, value in config.items() if key != QUANTIZATION}
    identity = {"conversion": "fp8-to-bf16", **identity_of(source, files)}
    return Job(source, destination, kept, outputs, partial(FromFp8, source, scheme), identity)


def to_fp8(source: Path, destination: Path, scheme: Scheme, ignored: Sequence[str] = ()) -> Job:
    """The job that quantises the matrices of a checkpoint, less those that no published checkpoint quantises.

    Args:
        ignored: further modules that keep their weights, by whole dotted names or runs of parts of them.

    Raises:
        SlimeError: the source is FP8 already, or holds experts in one tensor.
    """
    files, config = HfFiles(source), read_hf_config(str(source))
    _check_wide(files, config)
    names, chosen = list(dict.fromkeys([*PLAIN, *ignored])), chosen_matrices(files, ignored)
    kept = [(name, each) for name, each in _in_order(files) if name not in chosen]
    plain = [name.removesuffix(".weight") for name, each in kept if len(each.shape) == 2]
    return _to_fp8(destination, config | {QUANTIZATION: to_config(scheme, names, plain)}, files, scheme, chosen)


def to_fp8_like(source: Path, destination: Path, like: Path) -> Job:
    """The job that quantises what the FP8 checkpoint `like` of the same model holds in FP8, in the same way.

    Raises:
        SlimeError: one folder has a tensor that the other has not, or has in another shape; or `like` is not FP8.
    """
    files, config = HfFiles(source), read_hf_config(str(source))
    _check_wide(files, config)
    theirs, their_config = HfFiles(like), read_hf_config(str(like))
    scheme = scheme_of(their_config, theirs)
    weights = quantized_weights(theirs, scheme)
    wanted = {name: tensor for name, tensor in theirs.tensors.items() if not is_scale(name, weights, scheme)}
    for name in sorted(wanted.keys() ^ files.tensors.keys()):
        has, lacks = (like, source) if name in wanted else (source, like)
        todo = "Name the FP8 checkpoint of the same model."
        raise SlimeError(f"'{name}' is in {has} and not here", where=str(lacks), todo=todo)
    for name, tensor in wanted.items():
        if (found := files.tensors[name]).shape != tensor.shape:
            what = f"'{name}' has shape {list(found.shape)}, in {like} {list(tensor.shape)}"
            raise SlimeError(what, where=str(source), todo="Name the FP8 checkpoint of the same model.")
    for name in weights:
        if (dtype := theirs.tensors[name + scheme.suffix].dtype) != "F32":
            todo = "Leave out --like: scales are written in fp32."
            raise SlimeError(f"its scales are {dtype}", where=str(like), todo=todo)
    config = config | {QUANTIZATION: their_config[QUANTIZATION]}
    return _to_fp8(destination, config, files, scheme, weights.keys())


def scheme_to_write(strategy: Strategy, *, powers_of_two: bool) -> Scheme:
    """Blocks as `quant_method: fp8`, which live engines take; the others as compressed-tensors."""
    is_block = strategy is Strategy.block
    if powers_of_two and not is_block:
        todo = "Leave it out, or choose --scales block."
        raise SlimeError("belongs to blocks", where="--ue8m0", todo=todo)
    return Scheme(strategy, SCALE if is_block else "_scale", powers_of_two)


def wide_outputs(files: HfTensors, scheme: Scheme) -> list[Output]:
    """What an FP8 checkpoint becomes in BF16.

    Raises:
        SlimeError: what its config.json says does not fit its tensors.
    """
    weights = quantized_weights(files, scheme)
    return [
        Output(name, "BF16" if name in weights else tensor.dtype, tensor.shape)
        for name, tensor in _in_order(files)
        if not is_scale(name, weights, scheme)
    ]


def chosen_matrices(files: HfTensors, ignored: Sequence[str] = ()) -> set[str]:
    """The matrices that published checkpoints quantise, less the `ignored` modules'."""
    form = Fp8Format(ignored=[*PLAIN, *ignored])
    return {name for name, tensor in files.tensors.items() if form.quantizes(name, tensor.shape)}


def narrow_outputs(files: HfTensors, scheme: Scheme, chosen: Set[str]) -> list[Output]:
    """What a checkpoint becomes with its `chosen` matrices in FP8.

    Raises:
        SlimeError: one of them is in another dtype than slime quantises.
    """
    outputs: list[Output] = []
    for name, tensor in _in_order(files):
        if name not in chosen:
            outputs.append(Output(name, tensor.dtype, tensor.shape))
            continue
        if tensor.dtype not in _WIDE:
            todo = f"slime quantises {', '.join(_WIDE)}."
            raise SlimeError(f"'{name}' is {tensor.dtype}", where=str(files.folder / tensor.file), todo=todo)
        outputs.append(Output(name + scheme.suffix, "F32", scheme.scales_shape(tensor.shape)))
        outputs.append(Output(name, FP8, tensor.shape))
    return outputs


def _to_fp8(destination: Path, config: Mapping[str, Any], files: HfFiles, scheme: Scheme, chosen: Set[str]) -> Job:
    source = files.folder
    outputs = narrow_outputs(files, scheme, chosen)
    identity = {"conversion": "bf16-to-fp8", QUANTIZATION: config[QUANTIZATION], **identity_of(source, files)}
    return Job(source, destination, config, outputs, partial(ToFp8, source, scheme, frozenset(chosen)), identity)


class FromFp8:
    """The values of a checkpoint, its FP8 weights in BF16."""

    def __init__(self, folder: Path, scheme: Scheme) -> None:
        self._reader, self._scheme = TensorReader(HfFiles(folder)), scheme

    def values(self, name: str) -> Iterator[Tensor]:
        """Rows of a weight, or the bytes of any other tensor."""
        tensor = self._reader.tensors[name]
        if tensor.dtype != FP8:
            yield from self._reader.pieces(name)
            return
        scales = self._reader.rows(name + self._scheme.suffix)
        if self._scheme.strategy is Strategy.tensor:
            scales = scales.reshape(1, 1)
        for rows in bands(tensor.dtype, tensor.shape):
            block = self._scheme.block(tensor.shape)
            values = self._reader.rows(name, rows.start, rows.stop)
            yield blocks.dequantize(values, scales[_of(rows, block)], block, torch.bfloat16)


class ToFp8:
    """The values of a checkpoint, its `chosen` weights in FP8, with their scales."""

    def __init__(self, folder: Path, scheme: Scheme, chosen: frozenset[str]) -> None:
        self._reader, self._scheme, self._chosen = TensorReader(HfFiles(folder)), scheme, chosen
        self._scales: tuple[str, Tensor] = ("", torch.empty(0))

    def values(self, name: str) -> Iterator[Tensor]:
        """Rows of a weight, its scales, or the bytes of any other tensor."""
        weight = name.removesuffix(self._scheme.suffix)
        if name in self._chosen:
            yield from self._quantized(name)
        elif weight in self._chosen:
            yield self._scales_of(weight)
        else:
            yield from self._reader.pieces(name)

    def _quantized(self, name: str) -> Iterator[Tensor]:
        tensor, scales = self._reader.tensors[name], self._scales_of(name)
        for rows in bands(tensor.dtype, tensor.shape):
            values = self._reader.rows(name, rows.start, rows.stop)
            block = self._scheme.block(tensor.shape)
            yield blocks.quantize_by(values, scales[_of(rows, block)], block)

    def _scales_of(self, name: str) -> Tensor:
        """fp32 [row blocks, column blocks]; kept until another weight's are asked for, which is soon after."""
        if self._scales[0] != name:
            tensor = self._reader.tensors[name]
            block = self._scheme.block(tensor.shape)
            scales = torch.zeros(blocks.scales_shape(tensor.shape, block))
            for rows in bands(tensor.dtype, tensor.shape):
                values = self._reader.rows(name, rows.start, rows.stop)
                found = blocks.find_scales(values, block, powers_of_two=self._scheme.powers_of_two)
                here = scales[_of(rows, block)]
                torch.maximum(here, found, out=here)
            self._scales = name, scales
        return self._scales[1]


def bands(dtype: str, shape: Sequence[int]) -> Iterator[slice]:
    """Runs of rows to read at once: whole rows of blocks."""
    rows, columns = shape
    height = max(1, PIECE_BYTES // max(1, columns * DTYPES[dtype].itemsize) // BLOCK) * BLOCK
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def _of(rows: slice, block: tuple[int, int]) -> slice:
    """The rows of blocks that a run of rows lies in."""
    return slice(rows.start // block[0], -(-rows.stop // block[0]))


def _check_wide(files: HfTensors, config: Mapping[str, Any]) -> None:
    if config.get(QUANTIZATION):
        todo = f"Run 'slime convert fp8-to-bf16 {files.folder} {files.folder}-BF16' first."
        raise SlimeError("is quantised already", where=f"{files.folder / 'config.json'}: {QUANTIZATION}", todo=todo)
    for name, tensor in files.tensors.items():
        if len(tensor.shape) > 2:
            what = f"'{name}' has shape {list(tensor.shape)}: experts in one tensor, which FP8 checkpoints have singly"
            raise SlimeError(what, where=str(files.folder / tensor.file), todo="Take the published checkpoint.")


def _in_order(files: HfTensors) -> list[tuple[str, FileTensor]]:
    """Tensors as they lie on the disk."""
    return sorted(files.tensors.items(), key=lambda item: (item[1].file, item[1].start))
