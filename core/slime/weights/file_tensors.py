"""The headers of safetensors and their index, read by the standard library alone."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from slime.errors import SlimeError
from slime.files import human_bytes, is_pointer, pointer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_LENGTH_BYTES = 8
"""A file begins with the length of its header, which is JSON."""
_MAX_HEADER = 10**8
"""safetensors reads no longer ones."""
_PIECE_BYTES = 2**22


@dataclass(frozen=True)
class FileTensor:
    """A tensor's place, and what its file says of it: `dtype` in the file's own words ("BF16"), first byte and bytes;
    `stored_as` is its name there, where it stands for another (`slime.weights.hf_check`)."""

    file: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    size: int = 0
    stored_as: str = ""


def header(folder: Path, file: str) -> dict[str, FileTensor]:
    """The tensors of a file, by name.

    Raises:
        SlimeError: it is missing, cut short, no safetensors file, or a pointer of Git LFS.
    """
    found: dict[str, FileTensor] = {}
    with naming_faults(folder, file, _Torn), (folder / file).open("rb") as opened:
        found |= _entries(file, opened)
    return found


@contextmanager
def naming_faults(folder: Path, file: str, torn: type[Exception]) -> Iterator[None]:
    """Say in one line why a file cannot be read; `torn` is raised by who finds something else than tensors in it."""
    try:
        yield
    except FileNotFoundError:
        raise damaged(f"'{file}' is missing", folder) from None
    except OSError as error:
        what = f"'{file}' cannot be read ({error.strerror or error})"
        raise SlimeError(what, where=str(folder), todo="Give this user the right to it.") from None
    except torn as error:
        if is_pointer(folder / file):
            raise pointer(folder / file) from None
        raise damaged(f"'{file}' is torn or no safetensors file ({error})", folder) from None


def weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, as an index says.

    Raises:
        SlimeError: it is no index, it names no tensor, or a file of another folder.
    """
    if is_pointer(index):
        raise pointer(index)
    try:
        found = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(f"no valid index of safetensors ({error!r})", index) from None
    if strange := next((file for file in found.values() if not isinstance(file, str) or Path(file).name != file), None):
        raise damaged(f"no valid index of safetensors (it names {json.dumps(strange)[:60]} as a file)", index)
    return found


def shards(folder: Path) -> list[str]:
    """Files that are named as those of an index are, without those of another variant."""
    return sorted(file.name for file in folder.glob("model-*.safetensors") if _SHARD.fullmatch(file.name))


def damaged(what: str, where: Path) -> SlimeError:
    """The one line about a file that came in another form than it was written."""
    return SlimeError(what, where=str(where), todo="Download the checkpoint again.")


def same_bytes(folder: Path, one: FileTensor, other: FileTensor) -> bool:
    """Whether two tensors of a folder have the same dtype, shape and values, bit for bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with (folder / one.file).open("rb") as first, (folder / other.file).open("rb") as second:
        first.seek(one.start)
        second.seek(other.start)
        lengths = (min(_PIECE_BYTES, one.size - done) for done in range(0, one.size, _PIECE_BYTES))
        return all(first.read(length) == second.read(length) for length in lengths)


class _Torn(Exception):
    """A header that says nothing, or another thing than the file."""


def _entries(file: str, opened: BinaryIO) -> dict[str, FileTensor]:
    total = os.fstat(opened.fileno()).st_size
    length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
    data = _LENGTH_BYTES + length
    if total < _LENGTH_BYTES or length > _MAX_HEADER:
        raise _Torn("it has no header")
    if total < data:
        raise _Torn(f"it is cut short: {human_bytes(total)}, and its header alone has {human_bytes(length)}")
    try:
        entries: dict[str, Any] = json.loads(opened.read(length))
        entries.pop("__metadata__", None)
        found = {name: _entry(file, data, entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Torn(f"its header is none: {error!r}") from None
    _check_places(found, data, total)
    return found


def _entry(file: str, data: int, entry: Mapping[str, Any]) -> FileTensor:
    begin, end = entry["data_offsets"]
    shape, dtype = tuple(entry["shape"]), str(entry["dtype"])
    bits = math.prod(shape) * (bits_of(dtype) or 0)
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"{entry}")
    if bits and bits != 8 * (end - begin):
        raise ValueError(f"{end - begin} bytes for a tensor of {dtype} {list(shape)}")
    return FileTensor(file, shape, dtype, data + begin, end - begin)


def _check_places(found: Mapping[str, FileTensor], data: int, total: int) -> None:
    """Tensors lie one behind another, to the end of the file."""
    places = [(data, data), *sorted((each.start, each.start + each.size) for each in found.values())]
    if any(before[1] != after[0] for before, after in pairwise(places)):
        raise _Torn("its tensors do not lie one behind another")
    if (wanted := places[-1][1]) > total:
        raise _Torn(f"it is cut short: {human_bytes(total)} of {human_bytes(wanted)}")
    if wanted < total:
        raise _Torn(f"{human_bytes(total - wanted)} behind its last tensor")


def bits_of(dtype: str) -> int | None:
    """Bits of a number, by safetensors' name of the type; None: nobody knows."""
    if dtype == "BOOL":
        return 8
    number = re.match(r"[A-Z]+(\d+)", dtype)
    return int(number[1]) if number else None
