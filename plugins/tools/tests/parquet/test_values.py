"""A value of a parquet file is carried through a run without loss, or named by file, row and column as it is read."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest

from slime import driver_state
from slime.as_json import to_json
from slime.data.rows import first_rows, read_rows
from slime.errors import SlimeError

NS, US = pa.timestamp("ns"), pa.timestamp("us")
ROUND, FINE = 1_700_000_000_123_456_000, 1_700_000_000_123_456_789
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123456)
HALF = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xed\xa0")])
CARRIED: dict[str, tuple[Any, Any]] = {
    "nanoseconds": (pa.array([ROUND], NS), MOMENT),
    "in a list": (pa.array([[ROUND]], pa.list_(NS)), [MOMENT]),
    "in a long list": (pa.array([[ROUND]], pa.large_list(NS)), [MOMENT]),
    "in a short list": (pa.array([[ROUND]], pa.list_(NS, 1)), [MOMENT]),
    "in a struct": (pa.array([{"a": ROUND, "b": None}], pa.struct([("a", NS), ("b", NS)])), {"a": MOMENT, "b": None}),
    "in a map": (pa.array([[("k", ROUND)]], pa.map_(pa.string(), NS)), [("k", MOMENT)]),
    "zone": (pa.array([ROUND // 1000], pa.timestamp("us", "UTC")), MOMENT.replace(tzinfo=ZoneInfo("UTC"))),
    "zone in nanoseconds": (pa.array([ROUND], pa.timestamp("ns", "UTC")), MOMENT.replace(tzinfo=ZoneInfo("UTC"))),
    "duration": (pa.array([1000], pa.duration("ns")), timedelta(microseconds=1)),
    "time": (pa.array([1000], pa.time64("ns")), time(microsecond=1)),
    "date": (pa.array([20_000], pa.date32()), date(2024, 10, 4)),
    "decimal": (pa.array([Decimal("1.20")]), Decimal("1.20")),
    "wide decimal": (pa.array([Decimal("1" * 60)], pa.decimal256(70, 2)), Decimal("1" * 60 + ".00")),
    "bytes": (pa.array([b"\xff\0"]), b"\xff\0"),
    "bytes of a length": (pa.array([b"ab"], pa.binary(2)), b"ab"),
    "half": (pa.array([1.5], pa.float16()), 1.5),
    "infinity": (pa.array([float("inf")]), float("inf")),
    "unsigned": (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
    "map": (pa.array([[(1, "a"), (2, None)]], pa.map_(pa.int32(), pa.string())), [(1, "a"), (2, None)]),
    "nested": (pa.array([{"a": None, "b": {"c": None}}]), {"a": None, "b": {"c": None}}),
    "categories": (pa.array(["a"]).dictionary_encode(), "a"),
    "numbers as categories": (pa.array([3]).dictionary_encode(), 3),
    "uuid": (pa.array([bytes(15) + b"\1"], pa.uuid()), UUID(int=1)),
    "null": (pa.nulls(1), None),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "nanoseconds": (pa.array([FINE], NS), "would lose data: 1700000000123456789"),
    "in a list": (pa.array([[FINE]], pa.list_(NS)), "would lose data"),
    "in a struct": (pa.array([{"a": FINE}], pa.struct([("a", NS)])), "would lose data"),
    "in a map": (pa.array([[("k", FINE)]], pa.map_(pa.string(), NS)), "would lose data"),
    "duration": (pa.array([1501], pa.duration("ns")), "would lose data: 1501"),
    "time": (pa.array([1501], pa.time64("ns")), "would lose data: 1501"),
    "far": (pa.array([10**18], US), "date value out of range"),
    "far date": (pa.array([10**7], pa.date32()), "date value out of range"),
    "long": (pa.array([2**62], pa.duration("s")), "too large"),
    "zone": (pa.array([ROUND // 1000], pa.timestamp("us", "No/Where")), "No/Where"),
    "half of a character": (HALF, "can't decode byte 0xed"),
    "half in a list": (pa.ListArray.from_arrays([0, 1], HALF), "can't decode byte 0xed"),
    "half in a struct": (pa.StructArray.from_arrays([HALF], ["a"]), "can't decode byte 0xed"),
    "fields of one name": (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "duplicate field"),
}


def write(path: Path, column: Any, before: int = 0) -> Path:
    """A file whose last row has the value, behind others that have none."""
    whole = pa.concat_arrays([pa.nulls(before, column.type), column]) if before else column
    prompts = ["hi"] * len(whole)
    pyarrow.parquet.write_table(pa.table({"prompt": prompts, "v": whole}), path, row_group_size=700)
    return path


@pytest.mark.parametrize("name", CARRIED)
def test_it_is_carried(name: str, tmp_path: Path) -> None:
    column, value = CARRIED[name]
    [row] = read_rows(write(tmp_path / "rows.parquet", column)).rows
    assert (row["v"], type(row["v"])) == (value, type(value))
    kept = driver_state.loads(driver_state.dumps({"v": row["v"]}))["v"]
    assert (kept, type(kept)) == (value, type(value))
    assert "v" in orjson.loads(to_json(row.values))


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_named_as_it_is_read(name: str, tmp_path: Path) -> None:
    column, why = REFUSED[name]
    file = write(tmp_path / "rows.parquet", column, 0 if "fields" in name or "half" in name else 1500)
    number = len(pyarrow.parquet.read_table(file, columns=["prompt"]))
    with pytest.raises(SlimeError) as error:
        read_rows(file)
    assert (error.value.where, "\n" in str(error.value)) == (f"{file} row {number}", False)
    assert error.value.what.startswith("column 'v' holds a value that Python does not have (")
    assert why in error.value.what
    if number == 1:
        with pytest.raises(SlimeError, match="column 'v'"):
            first_rows(file, 9)
    else:
        assert len(first_rows(file, 9)) == 9


def test_two_columns_of_one_name_are_told_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["v", "v"]), file)
    with pytest.raises(SlimeError, match="parquet: not a readable parquet file: two columns are called 'v'"):
        read_rows(file)


def test_nothing_else_is_cast(tmp_path: Path) -> None:
    """The control: what has no nanoseconds is what pyarrow makes of it."""
    rows = [{"prompt": "hi", "v": [{"a": [number, None], "b": "x" * number}]} for number in range(2000)]
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    assert [dict(row.values) for row in read_rows(file).rows] == rows
    assert json.loads(to_json(rows)) == rows
