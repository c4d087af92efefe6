"""Which files of rows a path names: one file, those of one data set in a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TypeVar

from slime import plugins
from slime.config.paths import parted
from slime.errors import SlimeError, did_you_mean
from slime.extras import apart
from slime.files import is_pointer, pointer

JSONL, FORMAT = ".jsonl", "row_format"
TEXT = (JSONL, ".json", ".csv", ".tsv")
"""Suffixes of formats that core reads; a file of one may be packed."""
PACKED = (".gz", ".zst")
MAX_DEPTH = 4
"""Levels of folders in which files of rows are looked for."""
MAX_NAMED = 20
_SHARD = re.compile(r"[-_.]?\d+(?:-of-(?P<count>\d+)(?:-[0-9a-f]{16})?)?$")
"""The part of a name that tells one file of a data set from the others: `train-00002-of-00010`, `part_2`."""
P = TypeVar("P", str, Path)
_NO_ROWS = re.compile(r"\.|cache-.*\.arrow$|(config|state|dataset_(infos?|dict))\.json$")
"""Names of files and folders that stand beside rows and hold none."""


def suffixes() -> list[str]:
    """Suffixes of the formats that are installed, and of those of this repository."""
    return list(dict.fromkeys([*TEXT, *apart(FORMAT), *plugins.load().registries[FORMAT].names()]))


def suffix_of(file: PurePath) -> str:
    """The suffix that tells the format: of `rows.csv.gz` it is `.csv`."""
    inner = PurePath(file.stem).suffix
    return inner if file.suffix in PACKED and inner in TEXT else file.suffix


def row_files(path: Path) -> list[Path]:
    """The files of rows that a path names, in the order in which they are read: by name, `part-2` before `part-10`.

    Args:
        path: a file; a folder with one data set, in itself or, where it has no file of rows, in the folders below;
            `<folder>:<name>` for one of its data sets (`sets_in`); a pattern.

    Raises:
        SlimeError: there are none, one is empty or of another format, or a folder holds several data sets or lacks a
            file of one.
    """
    known = suffixes()
    whole, name = parted(path)
    if whole.is_dir():
        found = [whole / file for file in chosen(_below(whole), name, str(whole))[1]]
    elif name:
        raise SlimeError("a file has no splits", where=str(path), todo=f"Name {whole} alone.")
    elif whole.is_file():
        found = [whole]
    else:
        found = in_order(file for name in glob.glob(os.fspath(path), recursive=True) if (file := Path(name)).is_file())
    if not found:
        raise no_files(str(path))
    for file in found:
        if suffix_of(file) not in known:
            raise SlimeError("not a file of rows", where=str(file), todo=_in_words(known))
        if not file.stat().st_size:
            raise SlimeError("is empty", where=str(file), todo="Copy the file again, or name one with rows.")
        if is_pointer(file):
            raise pointer(file)
    return found


def no_files(where: str) -> SlimeError:
    return SlimeError("there are no files of rows", where=where, todo=_in_words(suffixes()))


def _in_words(known: Sequence[str]) -> str:
    """The sentence that names the formats."""
    *others, last = [suffix for suffix in known if suffix not in TEXT]
    return f"Rows are read from {', '.join(TEXT)} (also {' and '.join(PACKED)}), {', '.join(others)} and {last} files."


def chosen(names: Sequence[str], name: str, where: str) -> tuple[str, list[str]]:
    """The name and the files, in order, of one data set of a folder; where it has files of rows itself, those in the
    folders below are left alone.

    Args:
        names: of the files in the folder, which may be another machine's.
        name: of the data set, or its end: `train` or `main/train`; empty: the only one.
        where: the folder, for errors.

    Raises:
        SlimeError: there is no such set, there are several, or it lacks a file.
    """
    sets = sets_in(each for each in names if "/" not in each) or sets_in(names)
    if not sets:
        raise no_files(where)
    fits = [name] if name in sets else [each for each in sets if not name or each.endswith(f"/{name}")]
    if len(fits) != 1:
        several, first = ", ".join(sorted(fits or sets)[:MAX_NAMED]), next(iter(fits or sets))
        todo = f"Name one of them: {where}:{first}, or a pattern of files." if fits else did_you_mean(name, sets)
        what = f"the folder holds several data sets: {several}" if fits else f"the folder has no '{name}': {several}"
        raise SlimeError(what, where=where, todo=todo)
    files = sets[fits[0]]
    if len(forms := sorted({suffix_of(PurePath(file)) for file in files})) > 1:
        what, todo = f"one data set is there as {' and as '.join(forms)}", "Name files by a pattern."
        raise SlimeError(what, where=where, todo=todo)
    counts = {int(shard["count"]) for file in files if (shard := _SHARD.search(_stem(file))) and shard["count"]}
    if counts - {len(files)}:
        what = f"the folder holds {len(files)} of {max(counts)} files of the data set"
        raise SlimeError(what, where=where, todo="Fetch the others, or name those you want by a pattern.")
    return fits[0], files


def sets_in(names: Iterable[str]) -> dict[str, list[str]]:
    """The data sets among files, by name: that of `data/train-00000-of-00002.parquet` is `data/train`, that of
    `train/data-00000-of-00001.arrow`, as `save_to_disk` writes it, `train`. Other files are left out."""
    known, found = suffixes(), dict[str, list[str]]()
    for name in names:
        path = PurePath(name)
        if suffix_of(path) in known and not any(map(_NO_ROWS.match, path.parts)):
            stem = _SHARD.sub("", _stem(name))
            parts = [*path.parts[:-1], *([stem] if stem and (stem, path.suffix) != ("data", ".arrow") else [])]
            found.setdefault("/".join(parts) or "data", []).append(name)
    return {name: in_order(found[name]) for name in found}


def _stem(name: str) -> str:
    path = PurePath(name)
    return path.name.removesuffix(path.suffix if path.suffix not in PACKED else "".join(path.suffixes[-2:]))


def _below(folder: Path) -> list[str]:
    """Files in a folder and, where it has none with rows, in the folders in it."""
    found: list[str] = []
    for depth in range(MAX_DEPTH):
        files = (file for file in folder.glob("*/" * depth + "*") if file.is_file())
        found += (file.relative_to(folder).as_posix() for file in files)
        if not depth and sets_in(found):
            break
    return found


def in_order(files: Iterable[P]) -> list[P]:
    def by_numbers(file: P) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", os.fspath(file))]

    return sorted(files, key=by_numbers)
