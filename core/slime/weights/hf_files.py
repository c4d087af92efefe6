"""The safetensors of a Hugging Face folder, read slice by slice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slime.errors import SlimeError
from slime.files import is_pointer, pointer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MEGATRONS = "metadata.json"
"""What Megatron-core writes last into a checkpoint of its own: the format."""
_LENGTH_BYTES = 8
"""A file begins with the length of its header, which is JSON."""


@dataclass(frozen=True)
class FileTensor:
    """Where a tensor lies and what its file says of it; `dtype` in the file's own words ("BF16").

    Attributes:
        start: of its first byte in the file.
    """

    file: str
    shape: tuple[int, ...]
    dtype: str
    start: int


@dataclass
class HfTensors:
    """What a checkpoint folder holds, or would hold: by its safetensors, or by its config.json alone."""

    folder: Path
    tensors: dict[str, FileTensor]


class HfFiles(HfTensors):
    """The tensors of a checkpoint folder; every file's header is read and checked when this is made.

    Raises:
        SlimeError: no safetensors, a torn index, a missing or truncated file, a tensor that the index promises in vain.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        self.tensors = self._headers(_promised(folder))

    @contextmanager
    def open(self, file: str, framework: str = "pt") -> Iterator[Any]:
        """The open safetensors file, whose `get_slice(name)[rows]` reads those rows only."""
        try:
            with safe_open(self.folder / file, framework=framework) as opened:
                yield opened
        except FileNotFoundError:
            raise _damaged(f"'{file}' is missing", self.folder) from None
        except SafetensorError as error:
            if is_pointer(self.folder / file):
                raise pointer(self.folder / file) from None
            raise _damaged(f"'{file}' is torn or no safetensors file ({error})", self.folder) from None
        except OSError as error:
            what = f"'{file}' cannot be read ({error.strerror or error})"
            raise SlimeError(what, where=str(self.folder), todo="Give this user the right to it.") from None

    def _headers(self, promised: dict[str, set[str]]) -> dict[str, FileTensor]:
        found: dict[str, FileTensor] = {}
        for file, names in promised.items():
            with self.open(file, "np") as opened:  # whose names need no torch
                present = set(opened.keys())
                if missing := sorted(names - present):
                    what = f"'{file}' lacks '{missing[0]}', which {INDEX} promises ({len(missing)} in all)"
                    raise _damaged(what, self.folder)
            found |= _header(self.folder, file)
        return found


def is_megatrons(folder: Path) -> bool:
    """Whether it is a checkpoint of Megatron-core's."""
    return (folder / MEGATRONS).is_file()


def has_weights(folder: Path) -> bool:
    """Whether there are safetensors, or an index of some."""
    return (folder / INDEX).is_file() or (folder / SINGLE).is_file()


def _header(folder: Path, file: str) -> dict[str, FileTensor]:
    """What the header says of each tensor: that it is sound was found when safetensors opened the file."""
    with (folder / file).open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        entries = json.loads(opened.read(length))
    entries.pop("__metadata__", None)
    data = _LENGTH_BYTES + length
    return {
        name: FileTensor(file, tuple(entry["shape"]), entry["dtype"], data + entry["data_offsets"][0])
        for name, entry in entries.items()
    }


def _promised(folder: Path) -> dict[str, set[str]]:
    """File names with the tensors the index promises in each; a single file has no index and promises nothing."""
    if (folder / INDEX).is_file():
        files: dict[str, set[str]] = {}
        for name, file in _weight_map(folder / INDEX).items():
            files.setdefault(file, set()).add(name)
        return files
    if (folder / SINGLE).is_file():
        return {SINGLE: set()}
    if not folder.is_dir():
        raise SlimeError("there is no such folder", where=str(folder), todo="Check the path.")
    todo = "Name a folder with safetensors; for a run without weights, set model.init=random."
    raise SlimeError(f"neither {INDEX} nor {SINGLE} is there", where=str(folder), todo=todo)


def _weight_map(index: Path) -> dict[str, str]:
    if is_pointer(index):
        raise pointer(index)
    try:
        found = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(f"no valid index of safetensors ({error!r})", index) from None
    if strange := next((file for file in found.values() if not isinstance(file, str) or Path(file).name != file), None):
        raise _damaged(f"no valid index of safetensors (it names {json.dumps(strange)[:60]} as a file)", index)
    return found


def _damaged(what: str, where: Path) -> SlimeError:
    return SlimeError(what, where=str(where), todo="Download the checkpoint again.")
