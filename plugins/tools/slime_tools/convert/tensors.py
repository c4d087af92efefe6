"""Safetensors read by rows and written from beginning to end: no more than a few rows are in memory.

safetensors itself reads through mapped pages, which count as this process's memory until the file is closed, and writes
a file whose tensors are all in memory.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from slime.digest import DigestingFile, FileFacts
from slime.files import sync
from slime.weights.file_tensors import SINGLE, FileTensor
from slime.weights.hf_files import HfFiles

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By their names in a file's header."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}

PIECE_BYTES = 2**23
"""What is read, converted and written at once, in bytes; a row, or a row of blocks, may be more."""
_AHEAD_BYTES = 4 * PIECE_BYTES
"""How far the disk is asked to read ahead of what is converted, and how much it is given to write at once."""
_HEADER_ALIGN = 8
_LIBC = ctypes.CDLL(None)
_SYNC_FILE_RANGE_WRITE = 2  # <fcntl.h>: begin to write, wait for nothing


class TensorReader:
    """Reads rows of the tensors of a folder; its files stay open until it is gone."""

    def __init__(self, files: HfFiles) -> None:
        self.folder, self.tensors = files.folder, files.tensors
        self._open: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows `start` to `stop` of a tensor; a scalar is one row."""
        found = self.tensors[name]
        shape = found.shape or (1,)
        rows = torch.empty((shape[0] if stop is None else stop) - start, *shape[1:], dtype=DTYPES[found.dtype])
        self.read_into(rows, name, start)
        return rows if found.shape else rows[0]

    def read_into(self, rows: Tensor, name: str, start: int) -> None:
        """Fill `rows` (dense, of the tensor's dtype) with the tensor's rows from `start` on."""
        found = self.tensors[name]
        row_bytes = math.prod(found.shape[1:]) * DTYPES[found.dtype].itemsize
        self._read(as_bytes(rows), found, start * row_bytes)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The bytes of a tensor, `PIECE_BYTES` at a time."""
        found = self.tensors[name]
        size = num_bytes(found.dtype, found.shape)
        for start in range(0, size, PIECE_BYTES):
            piece = torch.empty(min(PIECE_BYTES, size - start), dtype=torch.uint8)
            self._read(piece, found, start)
            yield piece

    def _read(self, target: Tensor, found: FileTensor, offset: int) -> None:
        if not len(target):
            return
        # not numpy's view, after which the tensor could not give its memory back
        view = memoryview((ctypes.c_ubyte * len(target)).from_address(target.data_ptr()))
        if found.file not in self._open:
            self._open[found.file] = self._stack.enter_context((self.folder / found.file).open("rb", buffering=0))
        descriptor, done = self._open[found.file].fileno(), 0
        while done < len(view):
            count = os.preadv(descriptor, [view[done:]], found.start + offset + done)
            assert count, "safetensors found the file long enough when its header was read"
            done += count
        os.posix_fadvise(descriptor, found.start + offset + done, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)

    def __del__(self) -> None:
        self._stack.close()


def as_bytes(tensor: Tensor) -> Tensor:
    """The same memory as [num_bytes] uint8."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def storage_of(tensor: Tensor) -> int:
    """Tells tensors apart by their memory, also where that does not exist (device "meta")."""
    return int(tensor.untyped_storage()._cdata)


def num_bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * DTYPES[dtype].itemsize


@dataclass(frozen=True)
class Output:
    """A tensor that will be written; `dtype` in the file's own words ("BF16")."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class OutputFile:
    """A safetensors file that will be written, its tensors in the order in which they lie there."""

    name: str
    tensors: tuple[Output, ...]

    @cached_property
    def header(self) -> bytes:
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for tensor in self.tensors:
            start, end = end, end + tensor.num_bytes
            entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _HEADER_ALIGN)
        return len(text).to_bytes(8, "little") + text

    @property
    def num_bytes(self) -> int:
        return len(self.header) + sum(tensor.num_bytes for tensor in self.tensors)


def into_files(tensors: Iterable[Output], file_bytes: int) -> list[OutputFile]:
    """Tensors in their order, in files of at most `file_bytes`; one that is larger has a file of its own."""
    groups: list[list[Output]] = [[]]
    filled = 0
    for tensor in tensors:
        if groups[-1] and filled + tensor.num_bytes > file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.num_bytes
    count = len(groups)
    names = [f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]
    names = [SINGLE] if count == 1 else names
    return [OutputFile(name, tuple(_aligned(group))) for name, group in zip(names, groups, strict=True)]


def _aligned(tensors: Sequence[Output]) -> Sequence[Output]:
    """As they come, if each then begins at a multiple of its item size; otherwise the wide ones first."""
    start = 0
    for tensor in tensors:
        if start % DTYPES[tensor.dtype].itemsize:
            return sorted(tensors, key=lambda tensor: -DTYPES[tensor.dtype].itemsize)
        start += tensor.num_bytes
    return tensors


def write_file(path: Path, file: OutputFile, chunks: Iterable[Tensor]) -> FileFacts:
    """Write a safetensors file and flush it to the disk.

    Args:
        chunks: the values of its tensors, one after another, in any cuts.
    """
    with DigestingFile(path) as opened:
        opened.write(file.header)
        started = 0
        for chunk in chunks:
            opened.write(as_bytes(chunk).numpy().data)
            if (written := opened.facts["bytes"]) - started >= _AHEAD_BYTES:
                opened.flush()
                place = ctypes.c_int64(started), ctypes.c_int64(written - started)
                # A hint: the disk works on these bytes from now on, and not only once the whole file is there.
                _LIBC.sync_file_range(opened.fileno(), *place, _SYNC_FILE_RANGE_WRITE)
                started = written
    assert opened.facts["bytes"] == file.num_bytes, f"{path.name} has the bytes that its header announces"
    sync(path)
    return opened.facts
