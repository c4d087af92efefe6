"""Shards that a rank reads from where they are, because its folder of a checkpoint has not all of them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from megatron.core.dist_checkpointing.strategies import torch as torch_dist
from torch.distributed.checkpoint.filesystem import FileSystem

Elsewhere = Callable[[str], BinaryIO]
"""Opens a shard by its name."""


@contextmanager
def reading(elsewhere: Elsewhere | None) -> Iterator[None]:
    """Inside, Megatron-core's reader of shards takes those that are missing from `elsewhere`; None: it misses them."""
    if elsewhere is None:
        yield
        return
    made = torch_dist._get_filesystem_reader

    def reader(*args: Any, **kwargs: Any) -> Any:
        found = made(*args, **kwargs)
        found.fs = _Files(elsewhere)
        return found

    torch_dist._get_filesystem_reader = reader
    try:
        yield
    finally:
        torch_dist._get_filesystem_reader = made


class _Files(FileSystem):
    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if Path(path).exists():
            with super().create_stream(path, mode) as stream:
                yield stream
        else:
            with self._elsewhere(Path(path).name) as stream:
                yield cast(io.IOBase, stream)
