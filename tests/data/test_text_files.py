"""CSV, JSON lists and packed files: the rows that other programs wrote, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from slime.data import rows
from slime.data.rows import first_rows, read_rows
from slime.data.text_files import PIECE
from slime.errors import SlimeError

ROWS: list[dict[str, Any]] = [{"prompt": f'{number}+1,\n"="', "label": f"é{number}"} for number in range(12)]


def as_csv(file: Path, delimiter: str = ",") -> Path:
    with file.open("w", newline="", encoding="utf-8-sig") as out:
        writer = csv.DictWriter(out, ROWS[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    return file


def packed(file: Path) -> list[Path]:
    """The same bytes by gzip, and by Zstandard."""
    gz, zst = (file.with_name(file.name + suffix) for suffix in (".gz", ".zst"))
    gz.write_bytes(gzip.compress(file.read_bytes()))
    with pyarrow.output_stream(str(zst), compression="zstd") as out:
        out.write(file.read_bytes())
    return [gz, zst]


def test_rows_are_the_same_in_every_form(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "list.json").write_text(json.dumps(ROWS, indent=1, ensure_ascii=False))
    (tmp_path / "lines.json").write_bytes(lines.read_bytes())
    files = [lines, tmp_path / "list.json", tmp_path / "lines.json"]
    files += [as_csv(tmp_path / "rows.csv"), as_csv(tmp_path / "rows.tsv", "\t")]
    for file in [*files, *(each for plain in files for each in packed(plain))]:
        found = read_rows(file)
        assert [dict(row.values) for row in found.rows] == ROWS, file
        assert [row.number for row in found.rows] == list(range(1, 13))
        assert [row.values for row in first_rows(file, 3)] == ROWS[:3]
        limited = read_rows(file, limit=5)
        assert ([row.values for row in limited.rows], limited.num_rows) == (ROWS[:5], 5)
        assert read_rows(file, limit=5).content_hash == limited.content_hash


def test_the_index_of_a_table_is_no_column(tmp_path: Path) -> None:
    """As `DataFrame.to_csv` writes it."""
    (tmp_path / "rows.csv").write_text(",prompt,label\n0,1+1=,2\n1,2+2=,\n")
    found = read_rows(tmp_path / "rows.csv").rows
    assert [row.values for row in found] == [{"prompt": "1+1=", "label": "2"}, {"prompt": "2+2=", "label": ""}]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("r.csv", "a,b\n1\n", r"r.csv row 1: has 1 cells, and the first line 2"),
        ("r.csv", 'a,b\n"1,2\n', r"r.csv row 1: not a readable table: unexpected end of data"),
        ("r.csv", "a,a\n1,2\n", "two columns are called 'a'"),
        ("r.csv", "a,b\n", "the file has no rows"),
        ("r.json", '[{"a": 1}, {"a": 2', r"r.json row 2: not valid JSON"),
        ("r.json", '[{"a": 1} {"a": 2}]', r"r.json row 2: not valid JSON: no comma or end"),
        ("r.json", '[{"a": 1}, "x"]', r"r.json row 2: a row is a JSON object, this one is 'x'"),
        ("r.json", '[{"a": 1, "a": 2}]', r"the key 'a' stands in an object twice"),
        ("r.json", "[]", "the file has no rows"),
        ("r.json", '{\n"rows": [{"a": 1}]\n}', "it holds one object, and no list of rows"),
        ("r.jsonl.gz", "no gzip", r"not a readable .gz file: Not a gzipped file"),
        ("r.csv.zst", "no zstd", "not a readable .zst file"),
        ("r.xlsx", "PK", r"not a file of rows. Rows are read from .jsonl, .json, .csv, .tsv \(also .gz and .zst\), "),
    ],
)
def test_what_is_refused_is_told_in_a_line(name: str, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SlimeError, match=says) as caught:
        read_rows(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_packed_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS * 100))
    for file in packed(tmp_path / "rows.jsonl"):
        file.write_bytes(file.read_bytes()[:-20])
        with pytest.raises(SlimeError, match=f"not a readable {file.suffix} file|not valid JSON"):
            read_rows(file)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_command_that_takes_a_list_out_of_an_object_overwrites_nothing(suffix: str, tmp_path: Path) -> None:
    """Run as it is told, with the key that it leaves open."""
    file, other = tmp_path / "rows.json", tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"data": ROWS}, indent=1))
    file = packed(file)[0] if suffix else file
    other.write_text("mine\n")
    with pytest.raises(SlimeError, match="it holds one object") as caught:
        read_rows(file)
    command = str(caught.value).partition("list of rows: python ")[2].replace("KEY", "data")
    subprocess.run(f"{sys.executable} {command}", shell=True, check=True)
    assert [row.values for row in read_rows(tmp_path / "rows-2.jsonl").rows] == ROWS
    assert other.read_text() == "mine\n"


def test_a_small_packed_file_does_not_take_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BYTES", 3 * PIECE)
    for name in ("rows.jsonl.gz", "rows.csv.gz", "rows.json.gz"):
        with gzip.open(tmp_path / name, "wb") as out:
            out.write(b'[{"prompt": "' if ".json.gz" in name else b'{"prompt": "')
            for _ in range(8):
                out.write(b"x" * PIECE)
        assert (tmp_path / name).stat().st_size < 2**16
        with pytest.raises(SlimeError, match=r"the rows would take more than 3\.0 MiB of memory"):
            read_rows(tmp_path / name)
