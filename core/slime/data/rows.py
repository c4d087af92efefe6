"""Rows of a jsonl or parquet file, each with the line or row number that errors and prompt ids name."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from slime.errors import SlimeError, did_you_mean

SUFFIXES = (".jsonl", ".parquet")
MAX_DEPTH = 100
"""Levels of lists and objects in a row: more is damage, and ends in Python's recursion limit somewhere later."""
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""JSON writes a character beyond 16 bits as two such escapes; one alone is no text."""


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
    _require_suffix(path)
    content_hash = hashlib.blake2b(digest_size=16)
    rows = tuple((_parquet_rows if path.suffix == ".parquet" else _jsonl_rows)(path, content_hash.update))
    if not rows:
        raise SlimeError("the file has no rows", where=str(path), todo="Give a file with at least one row.")
    return RowFile(path, content_hash.hexdigest(), rows)


def first_rows(path: Path, count: int) -> list[Row]:
    """The first rows of a jsonl file; none of a parquet file, whose library takes longer to import than a plan may.

    Raises:
        SlimeError: as `read_rows`, of these rows.
    """
    _require_suffix(path)
    return [] if path.suffix == ".parquet" else list(islice(_jsonl_rows(path, lambda _: None), count))


def _require_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise SlimeError("not a jsonl or parquet file", where=str(path), todo=f"Use a {' or '.join(SUFFIXES)} file.")


def _jsonl_rows(path: Path, update_hash: Callable[[bytes], None]) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            update_hash(line)
            if line.strip():
                yield Row(number, where := f"{path} line {number}", _json_object(line, where))


def _json_object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line.decode(), object_pairs_hook=_distinct)
        if _HALF_A_PAIR.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise SlimeError(
            f"not UTF-8 text at byte {error.start + 1}", where=where, todo="Save the file as UTF-8."
        ) from None
    except UnicodeEncodeError as error:
        what = f"holds half of a character, \\u{ord(error.object[error.start]):x}, which no text can have"
        raise SlimeError(what, where=where, todo="Mend or delete the line.") from None
    except json.JSONDecodeError as error:
        raise _torn(error, where, is_last=not line.endswith(b"\n")) from None
    except (ValueError, RecursionError) as error:  # a key twice, a number of thousands of digits
        what = str(error) if isinstance(error, ValueError) else f"nested more than {MAX_DEPTH} levels deep"
        raise SlimeError(what, where=where, todo="Mend or delete the line.") from None
    if not isinstance(value, dict):
        raise SlimeError(f"a row is a JSON object, this one is {kind_of(value)}", where=where, todo="Mend the line.")
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and not _is_within(value, MAX_DEPTH):
        raise SlimeError(f"nested more than {MAX_DEPTH} levels deep", where=where, todo="Mend or delete the line.")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that stands in it twice, either value may be the one that was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' stands in an object twice")
    return found


def _is_within(value: Any, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_is_within(child, depth - 1) for child in children)


def _torn(error: json.JSONDecodeError, where: str, is_last: bool) -> SlimeError:
    if is_last:
        todo = "The last line seems cut off: copy the file again or delete the line."
    else:
        todo = "Mend or delete the line."
    return SlimeError(f"not valid JSON: {error.msg} at column {error.colno}", where=where, todo=todo)


def _parquet_rows(path: Path, update_hash: Callable[[bytes], None]) -> Iterator[Row]:
    import pyarrow  # late: `slime plan` on a jsonl file needs none of it
    import pyarrow.parquet

    content = path.read_bytes()
    update_hash(content)
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
