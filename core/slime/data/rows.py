"""Rows of files of all formats, each with the line or row number that errors and prompt ids name."""

from __future__ import annotations

import ast
import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from slime import plugins
from slime.data.shards import FORMAT, JSONL, TEXT, row_files, suffix_of
from slime.data.text_files import TABLES, Take, distinct, is_list, lines, list_rows, opened
from slime.errors import SlimeError, did_you_mean
from slime.extras import how_to_get
from slime.files import human_bytes

MAX_BYTES = 2**32
"""Memory that the rows of a data set may take, by this count: their bytes, and `VALUE_BYTES` for each value in them."""
VALUE_BYTES = 64
"""Memory that Python takes for a value beside its own bytes."""
MAX_DEPTH = 100
"""Levels of lists and objects in a row: more is damage, and ends in Python's recursion limit somewhere later."""
_PLAIN = {type(None), bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID}
"""Types of what stands in a row, beside lists, tuples and dicts: a checkpoint holds these."""
_MEND = "Mend or delete the line."
_NUMBER = re.compile(r"-?\d+")
_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""JSON writes a character beyond 16 bits as two such escapes; one alone is no text."""


class RowReader(Protocol):
    """Reads the files of one suffix (hook `slime_row_formats`)."""

    def __call__(self, path: Path, take: Take, most: int | None = None) -> Iterator[Mapping[str, Any]]:
        """The rows as Python values: those of JSON, bytes, dates and times, decimals, UUIDs.

        Args:
            take: called before values are made.
            most: rows that are wanted; None for all.

        Raises:
            SlimeError: the file is damaged.
        """


@dataclass(frozen=True)
class Row:
    """One record, by column, and where it stands, `<file> line <number>` or `<file> row <number>`. The number is
    1-based; of several files it is counted on through all."""

    number: int
    where: str
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        """The value of column `key`; `a.b` is the field b of the column a, `a.-1` the last of its list. Text in parts,
        as a message may have it, is had as text.

        Raises:
            SlimeError: the row has no such column; the nearest one is named.
        """
        if key in self.values:
            return self.values[key]
        found: Any = self.values
        for part in key.split("."):
            if _NUMBER.fullmatch(part) and found is not self.values:
                found = unfolded(found, key, self.where)
                if isinstance(found, list) and -len(found) <= int(part) < len(found):
                    found = found[int(part)]
                    continue
            if not isinstance(found, Mapping) or part not in found:
                known = found if isinstance(found, Mapping) and found is not self.values else self.values
                todo = did_you_mean(part if known is found else key, known) if known else "Mend or delete the row."
                raise SlimeError(f"the row has no key '{key}'", where=self.where, todo=todo)
            found = found[part]
        return as_text(found, f"'{key}'", self.where)


@dataclass(frozen=True)
class RowFile:
    """The rows that a path names, and the hash of the files' bytes, by which a resume recognises them; `num_rows` has
    those that are not wanted, too."""

    content_hash: str
    rows: tuple[Row, ...]
    num_rows: int


def read_rows(path: Path, wanted: Callable[[Row], bool] | None = None, limit: int | None = None) -> RowFile:
    """Read and parse all that `path` names: a file, a folder or a pattern (`slime.data.shards`).

    Args:
        wanted: asked of each row as it is read; others are not held. None: all are.
        limit: rows that are read, the first ones; the hash is then of what is read of jsonl, and of whole files of
            other formats. None: all.

    Raises:
        SlimeError: there are no such files, no rows, more than fits `MAX_BYTES`, or a row that does not parse.
    """
    content_hash = hashlib.blake2b(digest_size=16)
    rows: list[Row] = []
    take, last, num_rows = _room(path), 0, 0
    for file in row_files(path):
        left = None if limit is None else limit - num_rows
        if left == 0:
            break
        for row in islice(_rows(file, take, content_hash.update, last, left), left):
            last, num_rows = row.number, num_rows + 1
            if wanted is None or wanted(row):
                rows.append(row)
    if not num_rows:
        raise _no_rows(path)
    return RowFile(content_hash.hexdigest(), tuple(rows), num_rows)


def first_rows(path: Path, count: int) -> list[Row]:
    """The first rows, for a plan; none of a format whose reader is not installed, which a plan needs not.

    Raises:
        SlimeError: as `read_rows`, of these rows.
    """
    first, *others = row_files(path)
    if suffix_of(first) not in TEXT and first.suffix not in plugins.load().registries[FORMAT]:
        return []
    rows = list(islice(_rows(first, _room(path), None, 0, count), count))
    if not rows and not others:
        raise _no_rows(path)
    return rows


def _no_rows(path: Path) -> SlimeError:
    return SlimeError("the file has no rows", where=str(path), todo="Give a file with at least one row.")


def _room(path: Path) -> Take:
    """Counts the memory of values, and raises SlimeError if they are more than `MAX_BYTES`."""
    left = MAX_BYTES

    def take(num_bytes: int, num_values: int) -> None:
        nonlocal left
        left -= num_bytes + VALUE_BYTES * num_values
        if left < 0:
            what = f"the rows would take more than {human_bytes(MAX_BYTES)} of memory"
            raise SlimeError(what, where=str(path), todo="Give fewer or shorter rows: a run holds all in memory.")

    return take


def _rows(
    file: Path, take: Take, update_hash: Callable[[bytes], None] | None, before: int, most: int | None = None
) -> Iterator[Row]:
    """The rows of one file; `before`: the number of the last row of the files before it. `update_hash` gets all bytes
    of the file; None in a plan."""
    suffix = suffix_of(file)
    if suffix == JSONL or (suffix == ".json" and not is_list(file)):
        yield from _jsonl_rows(file, take, update_hash, before)
        return
    if update_hash is not None:
        with file.open("rb") as content:
            while block := content.read(2**20):
                update_hash(block)
    for number, values in enumerate(_reader(file)(file, take, most), start=1):
        where = f"{file} row {number}"
        if _fault(values) is not None:
            name, fault = next((name, fault) for name, value in values.items() if (fault := _fault(value)) is not None)
            todo = "Write numbers, text, lists and objects there, or leave the column out."
            raise SlimeError(f"column '{name}' holds {fault}", where=where, todo=todo)
        yield Row(before + number, where, values)


def _fault(value: Any, depth: int = MAX_DEPTH) -> str | None:
    """Why a value that another format gave cannot be carried through a run, if it cannot."""
    kind = type(value)
    if kind is str and value != value.encode(errors="replace").decode():
        return "half of a character, which no text can have"
    if kind in _PLAIN:
        return None
    if kind not in (list, tuple, dict):
        return f"a value of type {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold"
    for parts in (value, value.values()) if kind is dict else (value,):
        for part in parts:  # most are plain, and are asked nothing more: there are millions
            if not (part.isascii() if type(part) is str else type(part) in _PLAIN):
                if not depth:
                    return f"more than {MAX_DEPTH} levels"
                if (fault := _fault(part, depth - 1)) is not None:
                    return fault
    return None


def _reader(file: Path) -> RowReader:
    own: dict[str, RowReader] = {".json": list_rows, **TABLES}
    if (suffix := suffix_of(file)) in own:
        return own[suffix]
    formats = plugins.load().registries[FORMAT]
    if file.suffix not in formats:
        todo = how_to_get(f"{FORMAT}/{file.suffix}")
        raise SlimeError(f"nothing that is installed reads {file.suffix} files", where=str(file), todo=todo)
    reader: RowReader = formats.create(file.suffix)
    return reader


def _jsonl_rows(file: Path, take: Take, update_hash: Callable[[bytes], None] | None, before: int) -> Iterator[Row]:
    with opened(file) as content:
        for number, line in enumerate(lines(content, take), start=1):
            if update_hash is not None:
                update_hash(line)
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)  # as editors on Windows write it
            if line.strip():
                yield Row(before + number, where := f"{file} line {number}", _json_object(line, where))


def _json_object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line.decode(), object_pairs_hook=distinct)
        if _HALF_A_PAIR.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        what, todo = f"not UTF-8 text at byte {error.start + 1}", "Save the file as UTF-8."
        raise SlimeError(what, where=where, todo=todo) from None
    except UnicodeEncodeError as error:
        what = f"holds half of a character, \\u{ord(error.object[error.start]):x}, which no text can have"
        raise SlimeError(what, where=where, todo=_MEND) from None
    except json.JSONDecodeError as error:
        cut = not line.endswith(b"\n")
        todo = "The last line seems cut off: copy the file again or delete the line." if cut else _MEND
        what = f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        raise SlimeError(what, where=where, todo=todo) from None
    except (ValueError, RecursionError) as error:  # a key twice, a number of thousands of digits
        what = str(error) if isinstance(error, ValueError) else f"nested more than {MAX_DEPTH} levels deep"
        raise SlimeError(what, where=where, todo=_MEND) from None
    if not isinstance(value, dict):
        raise SlimeError(f"a row is a JSON object, this one is {kind_of(value)}", where=where, todo="Mend the line.")
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and not _is_within(value, MAX_DEPTH):
        raise SlimeError(f"nested more than {MAX_DEPTH} levels deep", where=where, todo=_MEND)
    return value


def _is_within(value: Any, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_is_within(child, depth - 1) for child in children)


def kind_of(value: object) -> str:
    """How a JSON value is called in an error message."""
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


_LIST_OF_MESSAGES = re.compile(
    r"""\s*\[\s*\{(?=[^{}]*["']role["']\s*:)(?=.*["']content["']\s*:)\s*["']\w+["']\s*:""", re.DOTALL
)
"""Not any JSON, which may be what a prompt is about: a list whose first object has a role and a content."""


def unfolded(value: Any, key: str, where: str) -> Any:
    """Text that is a list of messages in JSON or Python, as tables hold them, as that list; all else as it is."""
    if not isinstance(value, str) or not _LIST_OF_MESSAGES.match(value):
        return value
    text = value.strip()
    try:
        found, end = json.JSONDecoder().raw_decode(text)
        return found if end == len(text) else value  # more behind it: a prompt about such a list
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            what = f"'{key}' is text that begins as a list of messages and is none"
            raise SlimeError(what, where=where, todo="Write a list, or put the text in a message.") from error


def as_text(value: Any, name: str, where: str) -> Any:
    """Text that stands in parts, `[{"type": "text", "text": ...}]`, as one text, as chat templates write it; all else
    as it is.

    Args:
        name: of the value, for the error.

    Raises:
        SlimeError: a part is an image or another thing that is no text.
    """
    if not (isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value)):
        return value
    for number, part in enumerate(value, start=1):
        if part["type"] != "text" or not isinstance(part.get("text"), str):
            what = f"{name} has a part {number} of the type '{part['type']}' that is no text"
            raise SlimeError(what, where=where, todo="Models are given text alone: leave the row out, or that part.")
    return "".join(part["text"] for part in value)
