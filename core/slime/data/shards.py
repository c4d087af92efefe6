"""Which files of rows a path names: one file, all of a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

from slime import plugins
from slime.errors import SlimeError
from slime.extras import apart
from slime.files import is_pointer, pointer

JSONL, FORMAT = ".jsonl", "row_format"
_SHARD = re.compile(r"[-_.]?\d+(?:-of-(?P<count>\d+))?$")
"""The part of a name that tells one file of a data set from the others: `train-00002-of-00010`, `part_2`."""


def suffixes() -> list[str]:
    """Suffixes of the formats that are installed, and of those of this repository."""
    return list(dict.fromkeys([JSONL, *apart(FORMAT), *plugins.load().registries[FORMAT].names()]))


def row_files(path: Path) -> list[Path]:
    """The files of rows that a path names, in the order in which they are read: by name, `part-2` before `part-10`.

    Args:
        path: a file; a folder, of which each file with one of `suffixes()` is taken, none in folders below; a pattern.

    Raises:
        SlimeError: there are none, one is empty or of another format, or a folder holds several data sets or lacks a
            file of one.
    """
    known = suffixes()
    todo = f"Name {' or '.join(known)} files."
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = _in_order(file for file in path.iterdir() if file.suffix in known and file.is_file())
        _require_one_set(path, found)
    else:
        found = _in_order(file for name in glob.glob(os.fspath(path), recursive=True) if (file := Path(name)).is_file())
    if not found:
        raise SlimeError("there are no files of rows", where=str(path), todo=todo)
    for file in found:
        if file.suffix not in known:
            names = " or ".join(suffix.removeprefix(".") for suffix in known)
            raise SlimeError(f"not a {names} file", where=str(file), todo=todo + _how_to_convert(file))
        if not file.stat().st_size:
            raise SlimeError("is empty", where=str(file), todo="Copy the file again, or name one with rows.")
        if is_pointer(file):
            raise pointer(file)
    return found


def _how_to_convert(file: Path) -> str:
    """A command that makes jsonl of a file of a format that is often met."""
    if file.suffix == ".json":
        return f" Of a JSON list, 'jq -c .[] {file} > {file}l' makes one."
    if (delimiter := {".csv": ",", ".tsv": "\\t"}.get(file.suffix)) is None:
        return ""
    rows = f"csv.DictReader(open('{file}', newline='', encoding='utf-8-sig'), delimiter='{delimiter}')"
    code = f"import csv, json; [print(json.dumps(row)) for row in {rows}]"
    return f' This makes one: python -c "{code}" > {file.with_suffix(".jsonl")}'


def _in_order(files: Iterable[Path]) -> list[Path]:
    def by_numbers(file: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", os.fspath(file))]

    return sorted(files, key=by_numbers)


def _require_one_set(folder: Path, files: list[Path]) -> None:
    """Folders as they are fetched often hold a test split beside the one to train on."""
    sets = {_SHARD.sub("", file.stem) + file.suffix for file in files}
    if len(sets) > 1:
        todo = f"Name one of them, such as {folder / files[-1].name}, or a pattern, such as {folder}/train-*.parquet."
        raise SlimeError(f"the folder holds several data sets: {', '.join(sorted(sets))}", where=str(folder), todo=todo)
    counts = {int(shard["count"]) for file in files if (shard := _SHARD.search(file.stem)) and shard["count"]}
    if counts - {len(files)}:
        what = f"the folder holds {len(files)} of {max(counts)} files of the data set"
        raise SlimeError(what, where=str(folder), todo="Fetch the others, or name those you want by a pattern.")
