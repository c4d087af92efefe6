"""Values of a batch of rows as Python has them, and which of them Python has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import types

from slime.errors import SlimeError

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
