"""Writes the safetensors of a conversion: file by file, on several processes, going on where a killed one stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from torch import Tensor

from slime import files
from slime.digest import FileFacts
from slime.errors import SlimeError
from slime.files import human_bytes
from slime.weights.file_tensors import INDEX
from slime_megatron.train.weights.save_hf import SHARD_BYTES, copy_companions, write_json
from slime_tools.convert.hosts import here, started
from slime_tools.convert.staging import Staging, require_absent
from slime_tools.convert.tensors import Output, OutputFile, into_files, write_file

_POLL_S = 0.5
_OPENED, _THROUGH = "convert/opened", "convert/through/"
"""Keys of the store of torchrun's processes: the folder can be written to, and who has written his part of it."""
_LINE_S = 30.0
"""Seconds between lines of progress where there is no terminal."""


class Source(Protocol):
    """Where the values of the new tensors come from. Each process makes one."""

    def values(self, name: str) -> Iterator[Tensor]:
        """The values of a new tensor from its beginning to its end, in dense pieces."""


@dataclass(frozen=True)
class Job:
    """A conversion that ends in an HF folder.

    Attributes:
        source: the folder whose tokenizer and other small files go along.
        config: the new config.json.
        tensors: that are written, in this order.
        values: makes the `Source`; picklable.
        identity: what is converted how: JSON.
        file_bytes: largest file, unless a tensor is larger.
    """

    source: Path
    destination: Path
    config: Mapping[str, Any]
    tensors: Sequence[Output]
    values: Callable[[], Source]
    identity: Mapping[str, Any]
    file_bytes: int = SHARD_BYTES


def run(job: Job, processes: int) -> None:
    """Convert on `processes` processes, or on torchrun's.

    Raises:
        SlimeError: the destination exists, the disk is full, or a process was killed.
    """
    output = into_files(job.tensors, job.file_bytes)
    processes, total = min(processes, len(output)), sum(file.num_bytes for file in output)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        here(_write, job, output, True)
    elif processes <= 1:
        _write(0, 1, None, job, output, True)
    else:
        require_absent(job.destination)
        with progress_of(Staging(job.destination, {}), total) as progress:
            started(_write, processes, progress, job, output, False)


def _write(rank: int, world_size: int, store: Any, job: Job, output: Sequence[OutputFile], shown: bool) -> None:
    """Write the files of a rank. The first one opens the folder, and publishes it once all others are through."""
    layout, total = [[file.name, file.num_bytes] for file in output], sum(file.num_bytes for file in output)
    staging = Staging(job.destination, {**job.identity, "layout": layout})
    if rank:
        store.get(_OPENED)
    else:
        staging.open()
        check_room(job.destination, total - staging.written_bytes())
    if store:
        torch.set_num_threads(1)
        store.set(_OPENED, b"")
    source = job.values()
    with progress_of(staging, total, shown=shown and rank == 0) as progress:
        for file in output[rank::world_size]:
            staging.complete(file.name, partial(_write_file, file, source))
            progress()
        if rank:
            store.set(f"{_THROUGH}{rank}", b"")
            return
        # Also one whose files were all there before looks at them first: they may be damaged.
        while store and not store.check([f"{_THROUGH}{other}" for other in range(1, world_size)]):
            time.sleep(_POLL_S)
            progress()
    copy_companions(job.source, staging.files)
    write_json(staging.files / "config.json", job.config)
    if len(output) > 1:
        weight_map = {tensor.name: file.name for file in output for tensor in file.tensors}
        size = sum(tensor.num_bytes for tensor in job.tensors)
        write_json(staging.files / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})
    staging.publish()


def _write_file(file: OutputFile, source: Source, path: Path) -> tuple[FileFacts, None]:
    chunks = (chunk for tensor in file.tensors for chunk in source.values(tensor.name))
    return write_file(path, file, chunks), None


def check_room(destination: Path, needed: int) -> None:
    """SlimeError if the disk has less than `needed` bytes left."""
    if needed > (free := files.free_bytes(destination)):
        what = f"the disk has no room: {human_bytes(needed)} are needed, {human_bytes(free)} are free"
        raise SlimeError(what, where=str(destination), todo="Free some space, or choose another disk.")


@contextmanager
def progress_of(staging: Staging, total: int, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Yields what to call now and then: a bar on a terminal, a line every half minute elsewhere."""
    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    last = time.monotonic()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("convert", total=total, completed=staging.written_bytes())

        def update() -> None:
            nonlocal last
            done = staging.written_bytes()
            bar.update(task, completed=done)
            if shown and not console.is_terminal and time.monotonic() - last > _LINE_S:
                last = time.monotonic()
                console.print(f"{human_bytes(done)} of {human_bytes(total)}")

        yield update
