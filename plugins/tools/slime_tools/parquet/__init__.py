"""Parquet files as rows of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.data.rows import RowReader


@hookimpl
def slime_row_formats() -> Mapping[str, Callable[[], RowReader]]:
    return {".parquet": _parquet}


def _parquet() -> RowReader:
    from slime_tools.parquet.rows import parquet_rows

    return parquet_rows
