"""Publishing by way of a file system: a folder a version, which the engines then read. It is full, or a delta to the
version before where the publisher still has that one's memory."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch

from slime.digest import DigestingFile
from slime.files import disk_errors, publish_folder
from slime.weights.publisher.engine_link import EngineLink, Summary
from slime.weights.publisher.handover import Outcome, Sender, TrainerSide, results
from slime_sglang.disk import delta
from slime_sglang.disk.folder import folder_name, serial_of, stored
from slime_sglang.disk.options import disk_weights
from slime_sglang.disk.stored import MANIFEST, Manifest, StoredBucket, read_manifest
from weight_buckets.bucket import Bucket, Header
from weight_buckets.receipt import BucketNote


@dataclass
class Published:
    """A version that this process wrote, with the memory of its buckets if a delta may follow."""

    name: str
    manifest: Manifest
    memories: list[delta.Bytes]

    def header(self, index: int) -> Header | None:
        """Of a bucket, if there are so many."""
        return self.manifest.buckets[index].header if index < len(self.memories) else None


@dataclass
class VersionFolder:
    """Where one run publishes; this process writes there alone.

    Attributes:
        full_every: every n-th version is full; the others are deltas.
        newest: what the next delta builds on.
    """

    path: Path
    full_every: int
    newest: Published | None = None

    def begin(self, version: int) -> tuple[str, Path]:
        """Make room for a version; returns its name and the folder to write it to. All but the newest version and what
        that needs goes, and so does what never became whole: a reader of the newest has a step's time."""
        self.path.mkdir(parents=True, exist_ok=True)
        names = stored(self.path)
        needed = {names[-1], *read_manifest(self.path, names[-1]).builds_on} if names else set()
        for name in names:
            if name not in needed:
                (self.path / name).rename(self.path / f".{name}.partial")
        for torn in self.path.glob(".*.partial"):
            shutil.rmtree(torn)
        name = folder_name(serial_of(names[-1]) + 1 if names else 1, version)
        folder = self.path / f".{name}.partial"
        folder.mkdir()
        return name, folder


class DiskSender(Sender):
    """Rank 0's, which serves every engine; the other ranks only gather."""

    def __init__(self, side: TrainerSide) -> None:
        section = disk_weights(side.cfg.weights)
        self.receivers, self._serves, self._device = side.receivers, side.serves, side.device
        self._folder = VersionFolder(Path(section.path), section.full_every)

    def begin(
        self, version: int, links: Sequence[EngineLink], pool: ThreadPoolExecutor, senders: Sequence[int | None]
    ) -> Disk | None:
        return Disk(links, pool, self._folder, version, self._device) if self._serves else None


class Disk:
    """One version on its way into `folder`, which stays from one publish to the next, and from there into the engines.

    Args:
        links: every engine; they see the folder by the same path.
        pool: a thread for each.
        device: where buckets are filled.
    """

    num_buckets = 1

    def __init__(
        self,
        links: Sequence[EngineLink],
        pool: ThreadPoolExecutor,
        folder: VersionFolder,
        version: int,
        device: torch.device,
    ) -> None:
        self.links, self.new_bucket = links, partial(Bucket, device=device)
        self._pool, self._folder, self._version = pool, folder, version
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._buckets: list[StoredBucket] = []
        self._memories: list[delta.Bytes] = []

    def __enter__(self) -> Self:
        base, self._folder.newest = self._folder.newest, None  # until this version is whole
        is_due = base is None or len(base.manifest.builds_on) + 1 >= self._folder.full_every
        self._base = None if is_due else base
        with disk_errors(self._folder.path, key="weights.path"):
            self._name, self._partial = self._folder.begin(self._version)
        return self

    def __exit__(self, *raised: object) -> None:
        self._writer.shutdown()
        if self._partial.exists():  # given up; should it stay, it still is no version
            shutil.rmtree(self._partial, ignore_errors=True)

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        memory = _to_host(bucket)
        self._finish_writing()
        self._writing = self._writer.submit(self._write, bucket.header, memory)
        self._digests = note.digests

    def finish(self, sent: Summary) -> Outcome:
        self._finish_writing()
        self._commit(sent)
        path, name = self._folder.path, self._name
        receipts = results([self._pool.submit(load_stored, link, path, name) for link in self.links])
        return Outcome(sent, receipts, sum(bucket.facts["bytes"] for bucket in self._buckets))

    def _finish_writing(self) -> None:
        if self._writing:
            self._writing.result()

    def _write(self, header: Header, memory: delta.Bytes) -> None:
        """A bucket becomes a file, whose bytes are on the disk itself when this returns."""
        word, data = self._delta(header, memory)
        name = f"{len(self._buckets):05}.{'delta' if word else 'full'}"
        with disk_errors(self._partial, key="weights.path"), DigestingFile(self._partial / name) as file:
            file.write(data if isinstance(data, bytes) else data.data)
            file.flush()
            os.fsync(file.fileno())
        self._buckets.append(StoredBucket(name, file.facts, header, len(memory), word))
        if self._folder.full_every > 1:
            self._memories.append(memory)

    def _delta(self, header: Header, memory: delta.Bytes) -> tuple[int | None, bytes | delta.Bytes]:
        """Its words and the delta, or None and all the memory: there is no base, or the delta would be larger."""
        index = len(self._buckets)
        if self._base and self._base.header(index) == header:
            before, self._base.memories[index] = self._base.memories[index], memory  # no version is held twice
            word = _word(header, len(memory))
            if (changes := delta.encode(memory, before, word)) is not None:
                return word, changes
        return None, memory

    def _commit(self, summary: Summary) -> None:
        base = self._base if any(bucket.word for bucket in self._buckets) else None
        manifest = Manifest(
            version=self._version,
            summary=summary,
            builds_on=[*base.manifest.builds_on, base.name] if base else [],
            base=base.manifest.summary["fingerprint"] if base else "",
            deltas_follow=self._folder.full_every > 1,
            digests=self._digests,
            buckets=self._buckets,
        )
        with disk_errors(self._partial, key="weights.path"):
            publish_folder(self._partial, self._folder.path / self._name, (MANIFEST, manifest.to_json()))
        if manifest.deltas_follow:
            self._folder.newest = Published(self._name, manifest, self._memories)


def load_stored(link: EngineLink, folder: Path, name: str) -> Summary:
    """Have an engine take the version `name` from a folder that it sees by the same path; returns its receipt."""
    link.ask("disk", {"folder": str(folder), "name": name})
    return link.received()


def _to_host(bucket: Bucket) -> delta.Bytes:
    """A copy, with zeros between tensors, where a bucket has what was there before."""
    memory: delta.Bytes = bucket.memory[: bucket.used].to("cpu", copy=True).numpy()
    for one, other in pairwise(bucket.places):
        memory[one.end : other.start] = 0
    return memory


def _word(header: Header, num_bytes: int) -> int:
    """Bytes of an element of most of the memory, or 1 where they do not divide it."""
    held: Counter[int] = Counter()
    for place in header.places:
        held[place.dtype.itemsize] += place.end - place.start
    word = held.most_common(1)[0][0]
    return word if num_bytes % word == 0 else 1
