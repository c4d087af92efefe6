"""A host's part of the copies of the trainers' state: files as of a checkpoint, in the memory of the host.

    /dev/shm/slime-engine-<mark>-copies-<random>/12/__0_0.distcp ...   of step 12: what ranks of this host wrote, and
                                                                       those of the host before it
                                                 /12/0.whole           names and sizes of rank 0's files, once all of
                                                                       them are there

A rank writes its files as it writes those of a checkpoint, and then hands them to another host. So a rank may end at
any moment, or a host, and what has its mark is whole.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from slime.engines.scratch import scratch_prefix
from slime.files import files_under, free_bytes, human_bytes

if TYPE_CHECKING:
    from slime.train.rank import Saving

SHARED_MEMORY = Path("/dev/shm")
WHOLE, PART, SHARD = ".whole", ".part", ".distcp"
CHUNK = 16 << 20
"""Bytes that go from host to host at once."""
LEAST = 16 << 20
"""Bytes that are free before a copy begins, whose size nobody knows before the first."""
WHEN_ENDED = """exec 3<&0; (cat; rm -rf "$0") <&3 >/dev/null 2>&1 &"""
"""Of a shell: remove a folder once standard input ends, which the kernel closes however a process ends."""
Sizes = dict[str, int]
"""Bytes by name of a file."""


class CopyKeeper:
    """A Ray actor on each host of trainers, which outlives these; the files go with it. Its folder is the user's."""

    def __init__(self, mark: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"{scratch_prefix(mark)}copies-", dir=SHARED_MEMORY))
        command = ["sh", "-c", WHEN_ENDED, str(self._folder)]
        self._cleaner = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._cleaner.wait()  # what it has left behind waits

    def place(self) -> Path:
        return self._folder

    def begin(self, step: int, kept: int | None) -> str:
        """Make room for the copy of a step: of others only that of step `kept` stays. Returns why there is none; empty:
        there is."""
        for path in self._folder.iterdir():
            if path.name != str(kept):
                shutil.rmtree(path)
        needed = max(LEAST, sum(path.stat().st_size for path in files_under(self._folder)))
        if (free := free_bytes(self._folder)) < needed:
            return f"{human_bytes(free)} are free in {SHARED_MEMORY}, and it takes {human_bytes(needed)}"
        (self._folder / str(step)).mkdir()
        return ""

    def held(self) -> dict[int, dict[int, Sizes]]:
        """The files that are whole, by step and rank."""
        return {
            int(step.name): {int(mark.stem): json.loads(mark.read_text()) for mark in step.glob(f"*{WHOLE}")}
            for step in self._folder.iterdir()
        }

    def write(self, step: int, name: str, offset: int, data: bytes) -> None:
        """A part of a file of another host; parts come in order."""
        with (self._folder / str(step) / name).open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    def mark(self, step: int, rank: int, sizes: Sizes) -> None:
        """All files of that rank are here."""
        mark(self._folder / str(step), rank, sizes)

    def read(self, step: int, name: str, offset: int, length: int) -> bytes:
        with (self._folder / str(step) / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)


def mark(folder: Path, rank: int, sizes: Mapping[str, int]) -> None:
    """Note that all files of a rank are in the folder of a step."""
    assert all((folder / name).stat().st_size == size for name, size in sizes.items()), "they were written"
    (part := folder / f"{rank}{PART}").write_text(json.dumps(sizes))
    part.rename(folder / f"{rank}{WHOLE}")


class Copying:
    """A rank's part of a copy on its way: a thread waits for its files, and hands them to another host.

    Args:
        folder: of the step, on this host, which `saving` writes into.
        beside: the keeper of the other host; None: there is one host.
    """

    def __init__(self, saving: Saving, folder: Path, rank: int, beside: Any) -> None:
        self._saving, self._folder, self._rank, self._beside = saving, folder, rank, beside
        thread = ThreadPoolExecutor(1, "copy in memory")
        self._copying = thread.submit(self._copy)
        thread.shutdown(wait=False)

    @property
    def fault(self) -> str | None:
        """Why there is no copy; empty: there is one; None: it is on its way."""
        if not self._copying.done():
            return None
        return str(error).splitlines()[0] if (error := self._copying.exception()) else ""

    def _copy(self) -> None:
        sizes = {name: (self._folder / name).stat().st_size for name in self._names({*self._saving.wait()})}
        if self._beside is not None:
            self._hand_over(sizes)
        mark(self._folder, self._rank, sizes)

    def _names(self, shards: set[str]) -> set[str]:
        """With those of the files that the first rank writes beside the shards."""
        if self._rank:
            return shards
        there = {path.name for path in self._folder.iterdir() if path.suffix not in (WHOLE, PART, SHARD)}
        return shards | there

    def _hand_over(self, sizes: Sizes) -> None:
        import ray

        step = int(self._folder.name)
        for name, size in sizes.items():
            with (self._folder / name).open("rb") as file:
                for offset in range(0, max(size, 1), CHUNK):
                    ray.get(self._beside.write.remote(step, name, offset, file.read(CHUNK)))
        ray.get(self._beside.mark.remote(step, self._rank, sizes))


class Sources:
    """Where the files of a copy are: by name, the keeper of a host that has it, and its size."""

    def __init__(self, step: int, files: Mapping[str, tuple[Any, int]]) -> None:
        self._step, self._files = step, files

    def fetch_small(self, folder: Path) -> None:
        """Bring what is no shard into a folder, whose other files `open` reads from where they are."""
        folder.mkdir(exist_ok=True)
        for name in self._files:
            if not name.endswith(SHARD) and not (folder / name).exists():
                part = folder / f"{name}.{os.getpid()}{PART}"
                part.write_bytes(self.open(name).read())
                part.rename(folder / name)

    def open(self, name: str) -> BinaryIO:
        """A file, to read. Raises KeyError, as a mapping does, if there is none of that name."""
        keeper, size = self._files[name]
        return io.BufferedReader(_Elsewhere(self._reader(keeper, name), size), 1 << 20)

    def _reader(self, keeper: Any, name: str) -> Callable[[int, int], bytes]:
        import ray

        return lambda offset, length: ray.get(keeper.read.remote(self._step, name, offset, length))


class _Elsewhere(io.RawIOBase):
    """A file of another host. `read` gives the bytes from an offset on."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), CHUNK, max(0, self._size - self._at))
        data = self._read(self._at, length) if length else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
