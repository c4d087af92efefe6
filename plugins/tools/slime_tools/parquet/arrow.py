"""Rows of Arrow files: streams, as `datasets` writes them (`save_to_disk`), and files of Arrow's own format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import types

from slime.errors import SlimeError
from slime_tools.parquet.rows import AT_ONCE, OF_A_ROW, as_python, unfolded


def arrow_rows(path: Path, take: Callable[[int, int], None], most: int | None = None) -> Iterator[dict[str, Any]]:
    """A `slime.data.rows.RowReader`: one batch of the file is in memory at a time.

    Raises:
        SlimeError: the file is damaged.
    """
    num_read = 0
    try:
        with pyarrow.OSFile(str(path)) as file:
            for batch in _batches(file):
                batch.validate(full=True)  # offsets that point elsewhere would end the process
                wanted = batch if most is None else batch.slice(0, most - num_read)
                values = sum(map(_num_values, wanted.columns)) + wanted.num_rows * OF_A_ROW
                take(sum(map(unfolded, wanted.columns)), values)
                for start in range(0, wanted.num_rows, AT_ONCE):
                    rows = as_python(wanted.slice(start, AT_ONCE), path, num_read)
                    num_read += len(rows)
                    yield from rows
                if num_read == most:
                    return
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        what = f"not a readable Arrow file: {' '.join(str(error).split())[:200].rstrip('.')}"
        raise SlimeError(what, where=str(path), todo="Write or copy the file again.") from None


def _batches(file: Any) -> Iterator[Any]:
    if file.read(6) == b"ARROW1":
        opened = pyarrow.ipc.open_file(file)
        yield from (opened.get_batch(number) for number in range(opened.num_record_batches))
    else:
        file.seek(0)
        yield from pyarrow.ipc.open_stream(file)


def _num_values(values: Any) -> int:
    """Each element of a list is one, and each field of a struct."""
    kind = values.type
    if types.is_struct(kind):
        return sum(map(_num_values, values.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return len(values) + _num_values(values.flatten())
    return len(values) + (_num_values(values.keys) + _num_values(values.items) if types.is_map(kind) else 0)
