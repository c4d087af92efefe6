"""Rows of a parquet file, of which a few bytes may stand for any amount of memory, as Python has their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyarrow import types

from slime.errors import SlimeError

OF_A_ROW = 4
"""Values that a row itself is worth."""
AT_ONCE = 1000
"""Rows that are made at once: as Python values they take many times what the row group does."""


def parquet_rows(path: Path, take: Callable[[int, int], None], most: int | None = None) -> Iterator[dict[str, Any]]:
    """A `slime.data.rows.RowReader`: one row group is in memory at a time.

    Raises:
        SlimeError: the file is damaged.
    """
    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = [file.schema.column(index) for index in range(len(file.schema.names))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        # Texts stay in dictionaries, where one that stands in every row is held once.
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=texts)
        about = file.metadata
        stored = [about.row_group(number).total_byte_size for number in range(about.num_row_groups)]
        values = num_values(path)
        if most is None:
            take(sum(stored), sum(values) + about.num_rows * OF_A_ROW)
        num_read = 0
        for number, counted in enumerate(stored):
            if most is not None:  # the first row may hold all of them
                take(0, values[number])
            rows = file.read_row_group(number) if most is None else _first(file, number, most)
            take(max(0, sum(map(unfolded, rows.columns)) - counted), 0)
            for batch in rows.to_batches(AT_ONCE):  # whoever drops rows never holds a row group of them
                yield from as_python(batch, path, num_read)
                num_read += batch.num_rows
            if most is not None and (most := most - rows.num_rows) <= 0:
                return
    # Damage shows as any of these; ValueError: no UTF-8, or a time that Python does not have.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        what = f"not a readable parquet file: {reason}"
        raise SlimeError(what, where=str(path), todo="Write or copy the file again.") from None


def _first(file: Any, group: int, most: int) -> Any:
    batches = list(_until(file.iter_batches(batch_size=most, row_groups=[group]), most))
    return pyarrow.Table.from_batches(batches, schema=file.schema_arrow)


def _until(batches: Iterator[Any], most: int) -> Iterator[Any]:
    for batch in batches:
        yield batch.slice(0, most)
        if (most := most - batch.num_rows) <= 0:
            return


def unfolded(values: Any) -> int:
    """Bytes of all values; a repeated text counts each time."""
    if isinstance(values, pyarrow.ChunkedArray):
        return sum(map(unfolded, values.chunks))
    kind = values.type
    if types.is_struct(kind):
        return sum(map(unfolded, values.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return unfolded(values.flatten())
    if types.is_map(kind):
        return unfolded(values.keys) + unfolded(values.items)
    if types.is_dictionary(kind) and (types.is_string(kind.value_type) or types.is_binary(kind.value_type)):
        lengths = pyarrow.compute.binary_length(values.dictionary).cast(pyarrow.int64())
        return pyarrow.compute.sum(lengths.take(values.indices)).as_py() or 0
    return int(values.nbytes)


_FAULTS = (pyarrow.ArrowException, ValueError, OverflowError, LookupError)
"""Texts that are no UTF-8, and times that Python does not have: too far, too fine, or of a zone that is not known."""


def as_python(batch: Any, path: Path, before: int) -> list[dict[str, Any]]:
    """The rows of a batch. Times in nanoseconds are the standard library's, whether pandas is installed or not.

    Args:
        before: rows of the file before it.

    Raises:
        SlimeError: a value cannot be had; names its row and column.
        ValueError: two columns have one name.
    """
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise ValueError(f"two columns are called '{next(name for name in names if names.count(name) > 1)}'")
    try:
        rows: list[dict[str, Any]] = _in_microseconds(batch).to_pylist()
        return rows
    except _FAULTS:  # which may be of another batch: what is inside lists is cast whole
        return [_row(batch.take([number]), path, before + number + 1) for number in range(batch.num_rows)]


def _row(one: Any, path: Path, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, name in enumerate(one.schema.names):
        try:
            [found] = _in_microseconds(one.select([column])).to_pylist()
        except _FAULTS as reason:
            raise _fault(path, number, name, one.schema.field(column).type, reason) from None
        row |= found
    return row


def _fault(path: Path, row: int, column: str, kind: Any, reason: Exception) -> SlimeError:
    said = " ".join(str(reason).split()).partition(". ")[0].rstrip(".")
    what = f"column '{column}' holds a value that Python does not have ({f'{kind}'[:80]}: {said[:200]})"
    todo = "Write it as text or as a number, or leave the column out."
    return SlimeError(what, where=f"{path} row {row}", todo=todo)


def _in_microseconds(batch: Any) -> Any:
    """The same values, in the finest unit that Python's own times have; raises where that would lose some."""
    kinds = [_coarse(field.type) for field in batch.schema]
    columns = [
        column if column.type == kind else column.cast(kind) for column, kind in zip(batch.columns, kinds, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _coarse(kind: Any) -> Any:
    """A type with microseconds in place of nanoseconds."""
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pyarrow.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pyarrow.duration("us")
    if types.is_time64(kind) and kind.unit == "ns":
        return pyarrow.time64("us")
    if types.is_struct(kind):
        return pyarrow.struct([_with(field) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_coarse(kind.key_type), _with(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(_with(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pyarrow.list_(_with(kind.value_field))
    return pyarrow.large_list(_with(kind.value_field)) if types.is_large_list(kind) else kind


def _with(field: Any) -> Any:
    return field.with_type(_coarse(field.type))


_ROW_GROUPS, _COLUMNS, _META_DATA, _NUM_VALUES = 4, 1, 3, 5
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


def num_values(path: Path) -> list[int]:
    """Values of all columns, by row group; each element of a list is one, nulls too.

    pyarrow knows them too, but ends the process when it is asked for the columns of a damaged footer. The footer is a
    struct in Thrift's compact protocol; the numbers of its fields are those of the format's `parquet.thrift`.

    Raises:
        ValueError: the footer is damaged.
    """
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        footer = _struct(file)
    try:
        groups = [[column[_META_DATA][_NUM_VALUES] for column in group[_COLUMNS]] for group in footer[_ROW_GROUPS]]
        if all(count >= 0 for counts in groups for count in counts):
            return [sum(counts) for counts in groups]
    except (KeyError, TypeError):
        pass
    raise ValueError("its footer is damaged")


def _struct(file: BinaryIO) -> dict[int, Any]:
    """Fields by their numbers."""
    fields: dict[int, Any] = {}
    number = 0
    while header := _byte(file):
        number = number + (header >> 4) if header >> 4 else _zigzag(file)
        kind = header & 15
        fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else _value(file, kind)
    return fields


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRUCT:
        return _struct(file)
    if kind in (_LIST, _SET):
        header = _byte(file)
        size = header >> 4 if header >> 4 < 15 else _varint(file)
        return [_value(file, header & 15) for _ in range(size)]
    if kind == _MAP:
        size = _varint(file)
        kinds = _byte(file) if size else 0
        return [(_value(file, kinds >> 4), _value(file, kinds & 15)) for _ in range(size)]
    if kind == _BINARY:
        return file.read(_varint(file))
    if kind == _DOUBLE:
        return file.read(8)
    return _byte(file) if kind in (_TRUE, _FALSE, _BYTE) else _zigzag(file)


def _zigzag(file: BinaryIO) -> int:
    value = _varint(file)
    return value >> 1 if value % 2 == 0 else -(value + 1 >> 1)


def _varint(file: BinaryIO) -> int:
    value = shift = 0
    while (byte := _byte(file)) & 128:
        value |= (byte & 127) << shift
        shift += 7
    return value | byte << shift


def _byte(file: BinaryIO) -> int:
    if not (byte := file.read(1)):
        raise ValueError("its footer is cut off")
    return byte[0]
