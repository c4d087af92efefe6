"""A version from a folder into an engine (`slime_sglang.disk.folder`), on every one of its ranks.

On each host the first rank reads, into memory that the others map. Where deltas will follow it keeps that memory, and
reads only the delta of the next version. The bytes go into the model as those of any other publish, and the receipt
covers all of them.
"""

from __future__ import annotations

import os
import pickle
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch

from slime.digest import FileFacts
from slime.errors import SlimeError
from slime_sglang.disk import delta
from slime_sglang.disk.stored import MANIFEST, Manifest, StoredBucket, read_manifest
from slime_sglang.engine.side import EngineSide, Gather
from slime_sglang.engine.version_check import VersionFault
from weight_buckets.bucket import SharedBucket
from weight_buckets.receipt import BucketNote

_VISIBLE_S = 60.0
"""How long a version may take to be seen on another host than its publisher's: NFS asks a folder again that often."""
_POLL_S = 0.05
_PIECE = 2**20
"""Bytes at a time: they are in the processor's cache still when their digest is taken."""


class BucketCache:
    """The buckets of the version that an engine holds, or two that take turns.

    Attributes:
        version: fingerprint of the version whose buckets are all there; empty: none's.
    """

    def __init__(self) -> None:
        self.version = ""
        self.buckets: list[SharedBucket] = []

    def bucket(self, index: int, size: int) -> SharedBucket:
        """One of them, in their order; one that is not there yet is made with `size` bytes."""
        if index == len(self.buckets):
            self.buckets.append(SharedBucket(max(size, 1)))  # of nothing there is no map
        return self.buckets[index]

    def drop(self, first: int = 0) -> None:
        """Give buckets back to the host, from the `first` on."""
        for bucket in self.buckets[first:]:
            bucket.__exit__()
        del self.buckets[first:]


_held: weakref.WeakKeyDictionary[torch.nn.Module, BucketCache] = weakref.WeakKeyDictionary()
"""On the reading rank, by model."""


class Reader:
    """Reads one version, a bucket ahead.

    Args:
        held: by the engine; nothing builds on it until the version is whole.

    Raises:
        SlimeError: the version is not there, it is damaged, or what it builds on is gone or other than it was.
    """

    def __init__(self, held: BucketCache, folder: Path, name: str) -> None:
        self._held = held
        _wait_for(folder / name / MANIFEST)
        self.manifest = read_manifest(folder, name)
        self._steps = _steps(folder, name, self.manifest, held.version)
        held.version = ""
        self._pool = ThreadPoolExecutor(1)
        self._next = self._pool.submit(self._read, 0)

    def take(self, index: int) -> tuple[bytes, bool]:
        """The payload of a bucket, whose memory other processes map, and whether it is the last; the next one is read
        meanwhile. Raises SlimeError where a file is missing or damaged."""
        bucket, last = self._next.result(), index + 1 == len(self.manifest.buckets)
        if not last:
            self._next = self._pool.submit(self._read, index + 1)
        note = BucketNote(self.manifest.version, index, last, [*self.manifest.digests] if last else [])
        return bucket.payload(note), last

    def _read(self, index: int) -> SharedBucket:
        place = index if self.manifest.deltas_follow else index % 2
        bucket = self._held.bucket(place, self.manifest.buckets[index].size)
        files = [(path, step.buckets[index]) for path, step in self._steps if index < len(step.buckets)]
        first = max((at for at, (_, stored) in enumerate(files) if stored.word is None), default=0)
        for path, stored in files[first:]:
            _bring(bucket, stored, path / stored.file)
        return bucket

    def finish(self) -> None:
        """All of it went into the engine as it was published: the next deltas may build on it."""
        self._held.drop(len(self.manifest.buckets))
        if self.manifest.deltas_follow:
            self._held.version = self.manifest.summary["fingerprint"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown()
        if not self._held.version:
            self._held.drop()


def _steps(folder: Path, name: str, manifest: Manifest, held: str) -> list[tuple[Path, Manifest]]:
    """The folders that lead to a version, in order: from the one on what is held, or from a full one."""
    steps, needed = [(folder / name, manifest)], [*manifest.builds_on]
    while needed and steps[0][1].base != held:
        before = read_manifest(folder, needed[-1])
        if before.summary["fingerprint"] != steps[0][1].base:
            what = f"version '{steps[0][0].name}' does not build on '{needed[-1]}'"
            raise SlimeError(what, where=str(folder), todo="Remove both and publish again.")
        steps.insert(0, (folder / needed.pop(), before))
    return steps


def read_checked(path: Path, facts: FileFacts, target: memoryview | bytearray) -> None:
    """Read a whole file into memory of its size; SlimeError if it is not there, or not what `facts` says of it."""
    view, size, crc = memoryview(target).cast("B"), 0, 0
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(view[size : size + _PIECE]):
                size, crc = size + count, zlib.crc32(view[size : size + count], crc)
            size += len(file.read(1))  # it must end where the memory does
    except FileNotFoundError:
        raise SlimeError("the file is missing", where=str(path), todo="Publish again.") from None
    if facts != {"bytes": size, "crc32": f"{crc:08x}"}:
        raise SlimeError("the file is damaged: its size or digest is another", where=str(path), todo="Publish again.")


def _bring(bucket: SharedBucket, stored: StoredBucket, path: Path) -> None:
    """A file into a bucket: whole, or as a delta to what is there."""
    if stored.word is None:
        bucket.reserve(stored.header)
    if bucket.used != stored.size:
        what, todo = f"it has {stored.size} bytes of memory, its tensors {bucket.used}", "Publish again."
        raise SlimeError(what, where=str(path), todo=todo)
    memory = bucket.memory[: bucket.used].numpy()
    if stored.word is None:
        read_checked(path, stored.facts, memory.data)
        return
    data = bytearray(stored.facts["bytes"])
    read_checked(path, stored.facts, data)
    try:
        delta.apply(memoryview(data), memory, stored.word)
    except ValueError as error:
        raise SlimeError(f"no delta of this bucket: {error}", where=str(path), todo="Publish again.") from error


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _VISIBLE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def receive(told: Mapping[str, Any], side: EngineSide) -> Any:
    """Take in the version `told["name"]` of the folder `told["folder"]`; collective over the engine's ranks. Returns
    what `side.load` returned of the last bucket, and raises what it raises.

    Raises:
        SlimeError: a file is missing or damaged.
        VersionFault: the same on another rank, or `side.load` raised there.
    """
    host, gather = _host(), side.gather
    reads = next(pid for other, pid in gather((host, os.getpid())) if other == host) == os.getpid()
    with ExitStack() as stack:
        reader = None
        for index in count():
            offer = None
            with _telling_others(gather, host):
                if reads and index == 0:
                    held = _held.setdefault(side.model, BucketCache())
                    reader = stack.enter_context(Reader(held, Path(told["folder"]), told["name"]))
                if reader:
                    offer = reader.take(index)
            payload, last = _agree(gather((host, offer, "")), host)
            with nullcontext() if last else _telling_others(gather, host):
                bucket = pickle.loads(payload)
                result = side.load(bucket | {"flattened_tensor": bucket["flattened_tensor"].to(side.device)})
            if last:
                break
        if reader:
            reader.finish()
        return result


@contextmanager
def _telling_others(gather: Gather, host: str) -> Iterator[None]:
    """What fails here fails on every rank: the others wait for this one's next offer."""
    try:
        yield
    except Exception as error:
        gather((host, None, str(error)))
        raise


def _agree(offers: Sequence[tuple[str, tuple[bytes, bool] | None, str]], host: str) -> tuple[bytes, bool]:
    """The bucket that was read on this host, unless something failed on any."""
    if fault := next((fault for _, _, fault in offers if fault), None):
        raise VersionFault(fault)
    return next(offer for other, offer, _ in offers if other == host and offer)


def _host() -> str:
    """Alike in processes that can map each other's memory: those of one kernel and of one container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
