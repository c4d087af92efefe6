"""What a conversion will take: bytes of the disk, memory of each process, and time. `slime plan convert ...`"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slime import plugins
from slime.config.hf import QUANTIZATION, read_hf_config
from slime.errors import SlimeError
from slime.files import human_bytes
from slime.layout import read_grid
from slime.models.bridge import HfConfig, ModelBridge
from slime.models.mapping import Shard
from slime.models.shapes import Cut
from slime.sizes.model import keywords_of
from slime.sizes.parameters import shape_of, unknown_parameter, weights_of
from slime.weights.elsewhere import has_weights
from slime.weights.file_tensors import FileTensor
from slime.weights.hf_check import check_tensors
from slime.weights.hf_files import HfFiles, HfTensors
from slime_megatron.fp8_block.config import Fp8Format
from slime_tools.convert.fp8 import bands, chosen_matrices, narrow_outputs, wide_outputs
from slime_tools.convert.layout import Layout, check_layout, ranks_to_start
from slime_tools.convert.schemes import Scheme, scheme_of
from slime_tools.convert.tensors import DTYPES, PIECE_BYTES, Output, num_bytes

_DESCRIBED_IN = "config.json"


def tensors_of(folder: Path, *, in_fp8: bool = False) -> HfTensors:
    """Those of the folder's safetensors, or as its config.json describes them where there are none.

    Args:
        in_fp8: described ones are in FP8: as config.json says, or in blocks of 128 x 128.

    Raises:
        SlimeError: the folder holds a torn checkpoint, or none of an installed family.
    """
    if has_weights(folder):
        return HfFiles(folder)
    wide = HfTensors(folder, {name: _described(shape, "BF16") for name, shape in _shapes(folder)})
    if not in_fp8:
        return wide
    chosen = chosen_matrices(wide)
    outputs = narrow_outputs(wide, fp8_scheme(wide), chosen)
    return HfTensors(folder, {each.name: _described(each.shape, each.dtype) for each in outputs})


def fp8_scheme(files: HfTensors) -> Scheme:
    """What the config.json says of FP8 weights; if it says nothing and they are not there, that of live engines."""
    config = read_hf_config(str(files.folder))
    if QUANTIZATION not in config and not isinstance(files, HfFiles):
        config[QUANTIZATION] = Fp8Format().to_config()
    return scheme_of(config, files)


def model_of(folder: Path) -> tuple[HfConfig, ModelBridge]:
    """The folder's config.json, less what it says of FP8, which families are not asked about; and its family."""
    hf = {key: value for key, value in read_hf_config(str(folder)).items() if key != QUANTIZATION}
    return hf, plugins.load().models.create(hf["model_type"])


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor, second copies too, which many published checkpoints have."""
    hf, bridge = model_of(folder)
    mapping, model = bridge.weight_mapping(hf), keywords_of({}, bridge, hf)
    if unknown := unknown_parameter(mapping):
        what, todo = f"nobody told the size of '{unknown}', and there are no safetensors", "Name a folder with weights."
        raise SlimeError(what, where=str(folder), todo=todo)
    found: dict[str, tuple[int, ...]] = {}
    for entry in mapping.entries:
        if entry.rule.exported:
            found |= zip(entry.hf, entry.rule.layout.hf_shapes(shape_of(entry.rule, model), Shard()), strict=True)
    yield from found.items()
    yield from ((copy, found[name]) for copy, name in mapping.copies.items())


def _described(shape: tuple[int, ...], dtype: str) -> FileTensor:
    return FileTensor(_DESCRIBED_IN, shape, dtype, 0)


MIB = 2**20
_ALONE, _WITH_MEGATRON = 300 * MIB, 600 * MIB
"""Python and its libraries, without and with Megatron-core."""
BYTES_A_CPU_SECOND = {"fp8-to-bf16": 0.67e9, "bf16-to-fp8": 0.66e9, "hf-to-dist": 0.59e9, "dist-to-hf": 0.99e9}
"""Read and written: benchmarks/results/convert.md."""
_SECONDS_A_PARAMETER = 1e-3
"""To build modules without values: 29 s for 29,824 on one rank (docs/checkpoints.md)."""


@dataclass(frozen=True)
class Estimate:
    """Of a conversion by processes of one host.

    Attributes:
        reads, writes: bytes.
        num_tensors: that are written.
        is_described: sizes are those that a config.json tells.
        process_bytes: of one process, beside Python and its libraries.
        library_bytes: those.
        start_s: before the first byte.
    """

    conversion: str
    reads: int
    writes: int
    num_tensors: int
    is_described: bool
    processes: int
    process_bytes: int
    library_bytes: int = _ALONE
    start_s: float = 0.0

    def seconds(self, rate: float) -> float:
        """Time of a conversion that reads and writes `rate` bytes a second together."""
        return self.start_s + (self.reads + self.writes) / rate


def to_bf16(source: Path, processes: int) -> Estimate:
    """`fp8-to-bf16`; raises SlimeError as the conversion would."""
    files = tensors_of(source, in_fp8=True)
    return by_pieces("fp8-to-bf16", files, wide_outputs(files, fp8_scheme(files)), processes)


def to_fp8(source: Path, processes: int, scheme: Scheme, ignored: Sequence[str] = ()) -> Estimate:
    """`bf16-to-fp8`; raises SlimeError as the conversion would."""
    files = tensors_of(source)
    return by_pieces("bf16-to-fp8", files, narrow_outputs(files, scheme, chosen_matrices(files, ignored)), processes)


def by_pieces(conversion: str, files: HfTensors, outputs: Sequence[Output], processes: int) -> Estimate:
    """Two bands of rows are in memory at a time, each with what it becomes."""
    read = {name: num_bytes(tensor.dtype, tensor.shape) for name, tensor in files.tensors.items()}
    largest = PIECE_BYTES
    for output in outputs:
        if output.name in files.tensors and output.dtype != (dtype := files.tensors[output.name].dtype):
            first = next(bands(dtype, output.shape))
            largest = max(
                largest, first.stop * output.shape[1] * (DTYPES[dtype].itemsize + DTYPES[output.dtype].itemsize)
            )
    return Estimate(
        conversion,
        sum(read.values()),
        sum(output.num_bytes for output in outputs),
        len(outputs),
        _is_described(files),
        max(1, processes),
        2 * largest,
    )


def to_dist(source: Path, layout: Layout, processes: int) -> Estimate:
    """`hf-to-dist`; raises SlimeError as the conversion would."""
    files, num_ranks = tensors_of(source), ranks_to_start(layout, processes)
    hf, bridge = model_of(source)
    mapping = bridge.weight_mapping(hf)
    if isinstance(files, HfFiles):
        check_tensors(files, mapping)
    check_layout(layout, num_ranks, hf, bridge)
    moved = {name: num_bytes(files.tensors[name].dtype, files.tensors[name].shape) for name in mapping.hf_names}
    if unknown_parameter(mapping):
        largest, count = 2 * max(moved.values()), len(mapping.entries)  # gate and up are one parameter
    else:
        weights, grid = weights_of(keywords_of({}, bridge, hf), mapping), read_grid(num_ranks, layout)
        parts = {Cut.whole: 1, Cut.tensor: grid.tp, Cut.expert: grid.etp}
        dtype = files.tensors[max(moved, key=lambda name: moved[name])].dtype
        largest = max(each.numel // each.count // parts[each.cut] for each in weights) * DTYPES[dtype].itemsize
        count = sum(-(-weight.count // (grid.ep if weight.cut is Cut.expert else 1)) for weight in weights) // grid.pp
    return Estimate(
        "hf-to-dist",
        sum(moved.values()),
        sum(moved.values()),
        len(moved),
        _is_described(files),
        num_ranks,
        largest * 3 // 2 + 2 * PIECE_BYTES,
        _WITH_MEGATRON,
        count * _SECONDS_A_PARAMETER,
    )


def from_dist(outputs: Sequence[Output], processes: int) -> Estimate:
    """`dist-to-hf` of a checkpoint that is there."""
    total = sum(output.num_bytes for output in outputs)
    return Estimate(
        "dist-to-hf",
        total,
        total,
        len(outputs),
        False,
        max(1, processes),
        2 * max(output.num_bytes for output in outputs),
        _WITH_MEGATRON,
        len(outputs) * _SECONDS_A_PARAMETER,
    )


def _is_described(files: HfTensors) -> bool:
    return not isinstance(files, HfFiles)


def text(estimate: Estimate, disk_rate: float, free_bytes: int) -> str:
    """For people.

    Args:
        disk_rate: bytes a second, reading and writing together.
        free_bytes: on the destination's disk.
    """
    one = estimate.process_bytes + estimate.library_bytes
    sizes = " (as config.json tells: there are no weights)" if estimate.is_described else ""
    able = BYTES_A_CPU_SECOND[estimate.conversion] * min(estimate.processes, len(os.sched_getaffinity(0)))
    slower = "the processors" if able < disk_rate else "the disk"
    lines = [
        f"reads    {human_bytes(estimate.reads)}{sizes}",
        f"writes   {human_bytes(estimate.writes)} in {estimate.num_tensors} tensors; the disk has "
        f"{human_bytes(free_bytes)} free",
        f"memory   {human_bytes(estimate.processes * one)}: {estimate.processes} processes of "
        f"{human_bytes(estimate.process_bytes)} and Python with its libraries, {human_bytes(estimate.library_bytes)}",
        f"time     {minutes(estimate.seconds(min(able, disk_rate)))} at the rate of {slower}: the disk's is taken as "
        f"{disk_rate / 1e9:g} GB/s of reading and writing (--disk-gb-s), the cores here convert {able / 1e9:.1f} GB/s",
    ]
    return "\n".join(lines)


def minutes(seconds: float) -> str:
    """1830 -> '31 min'."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
