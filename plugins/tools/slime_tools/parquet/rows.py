"""Rows of a parquet file, of which a few bytes may stand for any amount of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyarrow import types

from slime.errors import SlimeError
from slime_tools.parquet.footer import num_values
from slime_tools.parquet.values import as_python

_OF_A_ROW = 4
"""Values that a row itself is worth."""
_AT_ONCE = 1000
"""Rows that are made at once: as Python values they take many times what the row group does."""


def parquet_rows(path: Path, take: Callable[[int, int], None], most: int | None = None) -> Iterator[dict[str, Any]]:
    """A `slime.data.rows.RowReader`: one row group is in memory at a time.

    Raises:
        SlimeError: the file is damaged.
    """
    try:
        file = pyarrow.parquet.ParquetFile(path)
        # Texts stay in dictionaries, where one that stands in every row is held once.
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=_texts(file))
        about = file.metadata
        stored = [about.row_group(number).total_byte_size for number in range(about.num_row_groups)]
        values = num_values(path)
        if most is None:
            take(sum(stored), sum(values) + about.num_rows * _OF_A_ROW)
        num_read = 0
        for number, counted in enumerate(stored):
            if most is not None:  # the first row may hold all of them
                take(0, values[number])
            rows = file.read_row_group(number) if most is None else _first(file, number, most)
            take(max(0, sum(map(_unfolded, rows.columns)) - counted), 0)
            for batch in rows.to_batches(_AT_ONCE):  # whoever drops rows never holds a row group of them
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
    """The first rows of a row group."""
    batches = list(_until(file.iter_batches(batch_size=most, row_groups=[group]), most))
    return pyarrow.Table.from_batches(batches, schema=file.schema_arrow)


def _until(batches: Iterator[Any], most: int) -> Iterator[Any]:
    for batch in batches:
        yield batch.slice(0, most)
        if (most := most - batch.num_rows) <= 0:
            return


def _texts(file: Any) -> list[str]:
    columns = (file.schema.column(index) for index in range(len(file.schema.names)))
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _unfolded(values: Any) -> int:
    """Bytes of all values; a repeated text counts each time."""
    if isinstance(values, pyarrow.ChunkedArray):
        return sum(map(_unfolded, values.chunks))
    kind = values.type
    if types.is_struct(kind):
        return sum(map(_unfolded, values.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _unfolded(values.flatten())
    if types.is_map(kind):
        return _unfolded(values.keys) + _unfolded(values.items)
    if types.is_dictionary(kind) and (types.is_string(kind.value_type) or types.is_binary(kind.value_type)):
        lengths = pyarrow.compute.binary_length(values.dictionary).cast(pyarrow.int64())
        return pyarrow.compute.sum(lengths.take(values.indices)).as_py() or 0
    return int(values.nbytes)
