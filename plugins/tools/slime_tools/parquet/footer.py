"""How many values a parquet file holds, by its footer.

pyarrow knows them too, but ends the process when it is asked for the columns of a damaged footer. The footer is a
struct in Thrift's compact protocol; the numbers of its fields are those of the format's `parquet.thrift`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

_ROW_GROUPS, _COLUMNS, _META_DATA, _NUM_VALUES = 4, 1, 3, 5
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12


def num_values(path: Path) -> list[int]:
    """Values of all columns, by row group; each element of a list is one, nulls too.

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
