"""Damaged parquet files, and small ones that stand for a great deal, are a line of text and not all of the memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from slime.data import rows
from slime.data.rows import first_rows, read_rows
from slime.errors import SlimeError
from slime_testing.patience import run_within

from .flipped import said_of_flipped_bits

CHAT = [
    {"prompt": [{"role": "user", "content": f"{number}+1="}], "label": str(number + 1), "extra": {"n": [number, 0.5]}}
    for number in range(300)
]


def write(path: Path, table: list[dict[str, Any]], **options: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path, **options)
    return path


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7}, {"use_dictionary": False, "compression": "zstd"}])
def test_rows_come_back_whole_in_any_layout(options: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "rows.parquet", CHAT, **options)
    found = read_rows(file).rows
    assert [row.values for row in found] == CHAT
    assert found[299].where == f"{file} row 300"
    assert [row.values for row in first_rows(file, 9)] == CHAT[:9]


def test_any_flipped_bit_is_an_error_of_one_line_or_another_value(tmp_path: Path) -> None:
    content = write(tmp_path / "rows.parquet", CHAT).read_bytes()
    file = tmp_path / "flipped.parquet"
    said = said_of_flipped_bits(content, file)
    assert len(said) > 50
    assert all(each.startswith(str(file)) and "\n" not in each for each in said)


@pytest.mark.parametrize("name", ["one text in every row", "texts inside lists", "numbers", "nulls", "nulls in a row"])
def test_what_a_small_file_unfolds_to_is_known_before_it_is_read(name: str, tmp_path: Path) -> None:
    """The first took 5.2 GB and 59 s."""
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 5000, pyarrow.int32()), ["x" * 2**20])
    content = pyarrow.StructArray.from_arrays([text], ["content"])
    many = pyarrow.nulls(10**8, pyarrow.int8()) if name == "nulls in a row" else []
    column = {
        "one text in every row": text,
        "texts inside lists": pyarrow.ListArray.from_arrays(list(range(0, 5001, 50)), content),
        "numbers": pyarrow.nulls(10**8, pyarrow.int8()).fill_null(1) if name == "numbers" else None,
        "nulls": pyarrow.nulls(10**8, pyarrow.int8()) if name == "nulls" else None,
        "nulls in a row": pyarrow.ListArray.from_arrays([0, len(many)], many) if name == "nulls in a row" else None,
    }[name]
    file = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": column}), file, compression="zstd")
    del column, text, content, many
    assert file.stat().st_size < 2**20
    code = f"""
import resource
from pathlib import Path
from slime.data.rows import first_rows, read_rows
import pyarrow.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in (read_rows, lambda path: {name == "nulls in a row"} and first_rows(path, 100)):
    try:
        read(Path({str(file)!r}))
    except Exception as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = run_within(60, [sys.executable, "-c", code])
    *said, grown = done.stdout.splitlines()
    assert len(said) == (2 if name == "nulls in a row" else 1)
    assert all(each.startswith(f"{file}: the rows would take more than 4.0 GiB of memory") for each in said)
    assert int(grown) < 300


def test_what_a_jsonl_file_unfolds_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of nothing take thirty times their text. Prompts take little more than theirs."""
    monkeypatch.setattr(rows, "MAX_BYTES", 10**6)
    small, prompts = tmp_path / "small.jsonl", tmp_path / "prompts.jsonl"
    small.write_text(f'{{"a": [{",".join(["[]"] * 10_000)}]}}\n')
    prompts.write_text(
        "".join(json.dumps({"prompt": "What is 1 and 2? " * 40, "label": "1"}) + "\n" for _ in range(300))
    )
    assert small.stat().st_size < prompts.stat().st_size / 5
    assert len(read_rows(prompts).rows) == 300
    with pytest.raises(SlimeError, match=r"small\.jsonl: the rows would take more than 976\.6 KiB of memory"):
        read_rows(small)


def test_a_file_without_rows_is_told_by_a_plan_too(tmp_path: Path) -> None:
    empty = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), empty)
    for read in (read_rows, lambda path: first_rows(path, 9)):
        with pytest.raises(SlimeError, match="the file has no rows"):
            read(empty)
    write(tmp_path / "more.parquet", CHAT)
    assert first_rows(tmp_path / "*.parquet", 9) == []
    assert len(read_rows(tmp_path / "*.parquet").rows) == len(CHAT)
