"""Size and digest of files: taken while a file is written, compared before anything in it is believed.

The digest is CRC-32, which finds every flipped bit, every burst of up to 32 bits, and all but one in 4e9 of other
accidents. It is no signature against a writer of the file. zlib takes several GB/s a core.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PIECE = 2**20
"""Bytes at a time: they are in the processor's cache still when they are copied."""


class FileFacts(TypedDict):
    """A file in a manifest: its size in bytes, and its digest as eight hexadecimal digits."""

    bytes: int
    crc32: str


class DigestingFile(io.BufferedWriter):
    """A new binary file, written from its beginning to its end, that takes its own digest on the way."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._size = self._crc = 0

    def write(self, data: Buffer) -> int:
        """Write all of `data`; returns its size."""
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, _PIECE):
            piece = view[start : start + _PIECE]
            self._crc = zlib.crc32(piece, self._crc)
            super().write(piece)
        self._size += view.nbytes
        return view.nbytes

    def seek(self, offset: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation("its digest is taken in order")

    @property
    def facts(self) -> FileFacts:
        """The facts of what was written so far."""
        return _facts(self._size, self._crc)


def facts_of(path: Path) -> FileFacts:
    """The facts of a file, which is read whole."""
    size = crc = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
    return _facts(size, crc)


def sealed(document: Mapping[str, Any]) -> bytes:
    """A description of files as JSON with a digest of itself, the same bytes whenever the same one is given."""
    digest = zlib.crc32(json.dumps(document).encode())
    return json.dumps({**document, "crc32": f"{digest:08x}"}, indent=1).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The document that `sealed` was given; ValueError, with what is wrong, where these are not its bytes."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(document, dict) or "crc32" not in document:
        raise ValueError("is not a manifest")
    del document["crc32"]
    if sealed(document) != data:
        raise ValueError("has other content than was saved")
    return document


def facts_by_name(listed: Any) -> dict[str, FileFacts]:
    """The files that a manifest lists; ValueError where it lists none, or something else."""
    kinds = {"bytes": int, "crc32": str}
    if not isinstance(listed, dict) or not listed:
        raise ValueError("lists no files")
    for name, facts in listed.items():
        if not isinstance(facts, dict) or {key: type(value) for key, value in facts.items()} != kinds:
            raise ValueError(f"lists '{name[:100]}' without its size and digest")
    return listed


def _facts(size: int, crc: int) -> FileFacts:
    return {"bytes": size, "crc32": f"{crc:08x}"}
