"""Lines of text files, packed ones too, and rows of CSV and of JSON lists."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from slime.errors import SlimeError

Take = Callable[[int, int], None]
"""Told the bytes and the number of values that come next; raises if there is no room for them."""
PIECE = 2**20
"""Bytes that are read at once: of a packed file, few may stand for any amount."""
MAX_CELL = 2**28
_AGAIN = "Copy or fetch the file again."


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked where its name ends with .gz or .zst.

    Raises:
        SlimeError: it is not packed so, or pyarrow, which unpacks .zst, is missing.
    """
    if file.suffix not in (".gz", ".zst"):
        with file.open("rb") as plain:
            yield plain
        return
    if file.suffix == ".zst" and find_spec("pyarrow") is None:
        raise SlimeError("pyarrow reads .zst files", where=str(file), todo="Run 'pip install pyarrow'.")
    try:
        if file.suffix == ".gz":
            with gzip.open(file) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            import pyarrow

            with pyarrow.input_stream(str(file), compression="zstd") as stream:
                yield io.BufferedReader(stream)
    except (OSError, EOFError, zlib.error) as error:
        what = f"not a readable {file.suffix} file: {str(error).rstrip('.')}"
        raise SlimeError(what, where=str(file), todo=_AGAIN) from error


def lines(content: BinaryIO, take: Take) -> Iterator[bytes]:
    """Each line with its end; `take` is told of it before it is whole."""
    parts: list[bytes] = []
    while part := content.readline(PIECE):
        take(len(part), part.count(b"[") + part.count(b"{") + part.count(b","))
        parts.append(part)
        if part.endswith(b"\n"):
            yield b"".join(parts)
            parts = []
    if parts:
        yield b"".join(parts)


def table_rows(path: Path, take: Take, most: int | None = None, *, delimiter: str) -> Iterator[Mapping[str, Any]]:
    """A `slime.data.rows.RowReader` of CSV: values are text. A column without a name, as an index has, is left out."""
    csv.field_size_limit(MAX_CELL)
    with opened(path) as content:
        texts = (
            line.decode("utf-8-sig" if not number else "utf-8") for number, line in enumerate(lines(content, take))
        )
        cells = csv.reader(texts, delimiter=delimiter, strict=True)
        number = 0
        try:
            header = next(cells)
            if twice := next((name for name in header if name and header.count(name) > 1), None):
                raise SlimeError(f"two columns are called '{twice}'", where=str(path), todo="Rename one.")
            for row in filter(None, cells):
                number += 1
                if len(row) != len(header):
                    what = f"has {len(row)} cells, and the first line {len(header)}"
                    raise SlimeError(what, where=f"{path} row {number}", todo="Mend or delete the row.")
                yield {name: cell for name, cell in zip(header, row, strict=True) if name}
        except (csv.Error, UnicodeDecodeError) as error:
            todo = "Save it as UTF-8, with texts in double quotes."
            raise SlimeError(f"not a readable table: {error}", where=f"{path} row {number + 1}", todo=todo) from None


TABLES = {".csv": partial(table_rows, delimiter=","), ".tsv": partial(table_rows, delimiter="\t")}


def is_list(path: Path) -> bool:
    """Whether a file of JSON is a list of rows. One with a row in each line is none.

    Raises:
        SlimeError: it is one object of several lines.
    """
    with opened(path) as content:
        first = next((line.removeprefix(b"\xef\xbb\xbf").strip() for line in content if line.strip()), b"")
    if first.startswith(b"{") and not first.endswith(b"}"):
        new = next(fresh(path.with_name(path.name.partition(".")[0])))
        todo = "Write its list of rows alone into a file."
        if path.suffix != ".zst":
            name, module = f"'{path}'", "gzip" if path.suffix == ".gz" else "io"
            code = f"import {module}, json; [print(json.dumps(row)) for row in json.load({module}.open({name}))['KEY']]"
            todo = f'For the key that has its list of rows: python -c "{code}" > {new}'
        raise SlimeError("it holds one object, and no list of rows", where=str(path), todo=todo)
    return first.startswith(b"[")


def fresh(stem: Path) -> Iterator[Path]:
    """Names of jsonl files that are not there."""
    names: Sequence[str] = ["", *(f"-{number}" for number in range(2, 1000))]
    return (path for name in names if not (path := stem.with_name(f"{stem.name}{name}.jsonl")).exists())


def list_rows(path: Path, take: Take, most: int | None = None) -> Iterator[Mapping[str, Any]]:
    """A `slime.data.rows.RowReader` of a list of objects in JSON."""
    with opened(path) as content:
        try:
            text = b"".join(lines(content, take)).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SlimeError(f"not UTF-8 text at byte {error.start + 1}", where=str(path), todo=_AGAIN) from None
    decoder = json.JSONDecoder(object_pairs_hook=distinct)
    at, number = text.index("[") + 1, 1
    try:
        while (at := _behind_space(text, at)) < len(text) and text[at] != "]":
            value, at = decoder.raw_decode(text, at)
            if not isinstance(value, dict):
                what = f"a row is a JSON object, this one is '{str(value)[:40]}'"
                raise SlimeError(what, where=f"{path} row {number}", todo="Mend the list.")
            yield value
            at, number = _behind_space(text, at), number + 1
            if text[at : at + 1] == ",":
                at += 1
            elif text[at : at + 1] != "]":
                break
        if text[at:].rstrip() != "]":
            raise ValueError("the list is cut off" if at >= len(text) else "no comma or end of the list behind it")
    except (ValueError, RecursionError) as error:
        what = f"not valid JSON: {error}" if isinstance(error, ValueError) else "nested too deep"
        raise SlimeError(what, where=f"{path} row {number}", todo="Mend the list, or copy the file again.") from None


def _behind_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that stands in it twice, either value may be the one that was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' stands in an object twice")
    return found
