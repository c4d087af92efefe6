"""Rows of a jsonl or parquet file, each with the line or row number that errors and prompt ids name."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.errors import SlimeError, did_you_mean

SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Row:
    """One record and where it stands.

    Attributes:
        number: 1-based line of a jsonl file, 1-based row of a parquet file.
        where: `<file> line <number>` or `<file> row <number>`.
        values: column name -> value.
    """

    number: int
    where: str
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        """The value of column `key`.

        Raises:
            SlimeError: the row has no such column; the nearest one is named.
        """
        if key not in self.values:
            raise SlimeError(f"the row has no key '{key}'", where=self.where, todo=did_you_mean(key, self.values))
        return self.values[key]


@dataclass(frozen=True)
class RowFile:
    """A whole file of rows, with the hash of its bytes by which a resume recognises it."""

    path: Path
    content_hash: str
    rows: tuple[Row, ...]


def read_rows(path: Path) -> RowFile:
    """Read and parse the whole of `path`.

    Raises:
        SlimeError: another suffix than `.jsonl` or `.parquet`, no rows, or a row that does not parse.
    """
    content = _read_bytes(path)
    rows = tuple(_parquet_rows(path, content) if path.suffix == ".parquet" else _jsonl_rows(path, content))
    if not rows:
        raise SlimeError("the file has no rows", where=str(path), todo="Give a file with at least one row.")
    return RowFile(path, hashlib.blake2b(content, digest_size=16).hexdigest(), rows)


def _read_bytes(path: Path) -> bytes:
    if path.suffix not in SUFFIXES:
        raise SlimeError("not a jsonl or parquet file", where=str(path), todo=f"Use a {' or '.join(SUFFIXES)} file.")
    return path.read_bytes()


def _jsonl_rows(path: Path, content: bytes) -> Iterator[Row]:
    ends_in_newline = content.endswith(b"\n")
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            is_last = number == len(lines) and not ends_in_newline
            yield Row(number, where := f"{path} line {number}", _json_object(line, where, is_last))


def _json_object(line: bytes, where: str, is_last: bool) -> Mapping[str, Any]:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise SlimeError(
            f"not UTF-8 text at byte {error.start + 1}", where=where, todo="Save the file as UTF-8."
        ) from None
    except json.JSONDecodeError as error:
        raise _torn(error, where, is_last) from None
    if not isinstance(value, dict):
        raise SlimeError(f"a row is a JSON object, this one is {kind_of(value)}", where=where, todo="Mend the line.")
    return value


def _torn(error: json.JSONDecodeError, where: str, is_last: bool) -> SlimeError:
    if is_last:
        todo = "The last line seems cut off: copy the file again or delete the line."
    else:
        todo = "Mend or delete the line."
    return SlimeError(f"not valid JSON: {error.msg} at column {error.colno}", where=where, todo=todo)


def _parquet_rows(path: Path, content: bytes) -> Iterator[Row]:
    import pyarrow  # late: `slime plan` on a jsonl file needs none of it
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
    except pyarrow.ArrowInvalid as error:
        raise SlimeError(
            f"not a readable parquet file: {error}", where=str(path), todo="Write the file again."
        ) from None
    for number, values in enumerate(table.to_pylist(), start=1):
        yield Row(number, f"{path} row {number}", values)


def kind_of(value: object) -> str:
    """How a JSON value is called in an error message."""
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
