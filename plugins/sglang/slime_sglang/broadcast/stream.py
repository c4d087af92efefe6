"""A version as streams of broadcasts, one from each source. A store tells ahead what each bucket holds, so that an
engine can wait for the next one while it loads one.

The store stays from one version to the next; each version has a part of it, and each stream a part of that.
"""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, cycle, islice
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from slime.net import join_store
from weight_buckets.bucket import Bucket, Header
from weight_buckets.receipt import NOTE_KEY, BucketNote

_FAILED = "failed"


@functools.lru_cache(maxsize=1)
def publishers_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """An engine's end of the publisher's store, the same for every version."""
    return join_store(host, port, timedelta(seconds=timeout_s))


def part_of(store: Store, name: str) -> Store:
    """The part of one version, or of one stream of it."""
    return PrefixStore(name, store)


def announce(stream: Store, bucket: Bucket, note: BucketNote) -> None:
    """Tell what the broadcast that begins now brings."""
    stream.set(str(note.index), json.dumps({"header": bucket.header.to_dict(), "note": note.to_dict()}))


def give_up(stream: Store) -> None:
    """End a stream before its last bucket, also for a source that cannot do it."""
    num_announced = next(index for index in count() if not stream.check([str(index)]))
    stream.set(str(num_announced), json.dumps(None))


def forget(stream: Store) -> None:
    """Clear a stream that every engine has read."""
    index = count()
    while stream.delete_key(str(next(index))):
        pass


def tell_failed(version: Store) -> None:
    """End a version for the sources that still send."""
    version.set(_FAILED, "1")


def has_failed(version: Store) -> bool:
    return bool(version.check([_FAILED]))


@dataclass(frozen=True)
class Source:
    """One stream of a version, at an engine.

    Attributes:
        name: of the trainer that sends, and of `group`.
        stream: what it announces.
        group: process group of the trainer (rank 0) and the engines.
    """

    name: str
    stream: Store
    group: dist.ProcessGroup

    def broadcasts(self, buckets: Iterator[Bucket]) -> Iterator[_Coming]:
        """What it sends, each in the next of `buckets`, as its broadcast begins."""
        for index in count():
            told = json.loads(self.stream.get(str(index)))
            if told is None:
                raise RuntimeError(f"{self.name} gave this version up")
            bucket, note = next(buckets), BucketNote(**told["note"])
            bucket.reserve(Header(**told["header"]))
            work = dist.broadcast(bucket.memory[: bucket.used], group=self.group, group_src=0, async_op=True)
            yield _Coming(self.name, bucket, note, work)
            if note.last:
                return


@dataclass(frozen=True)
class _Coming:
    source: str
    bucket: Bucket
    note: BucketNote
    work: dist.Work


def receive_buckets(sources: Sequence[Source], device: torch.device) -> Iterator[dict[str, Any]]:
    """The buckets of a version, as SGLang takes them, from each source in turn; one that has ended is left out.

    A bucket of each source may be on the wire while one is loaded. Memories take turns: a broadcast begins once the
    device is done with all that it had to do until then, the loading from its memory included.

    Raises:
        RuntimeError: a source gave up, is gone, or is silent for longer than the store's timeout.
    """
    memories = cycle([Bucket(0, device) for _ in range(len(sources) + 1)])
    on_the_wire: deque[_Coming] = deque()
    arrived = _Arrived()
    for coming in _by_turns([source.broadcasts(memories) for source in sources]):
        on_the_wire.append(coming)
        if len(on_the_wire) > len(sources):
            yield arrived.add(on_the_wire.popleft(), last=False)
    while on_the_wire:
        coming = on_the_wire.popleft()
        yield arrived.add(coming, last=not on_the_wire)


class _Arrived:
    """The buckets that came, over all sources."""

    def __init__(self) -> None:
        self._counts: list[tuple[str, int]] = []
        self._digests: dict[str, Iterator[int]] = {}

    def add(self, coming: _Coming, *, last: bool) -> dict[str, Any]:
        """Wait for a bucket. Its note numbers it within the version, whose last bucket brings the digests of all
        tensors; each source tells its own with its last bucket."""
        try:
            coming.work.wait()
        except RuntimeError as error:
            raise RuntimeError(f"the broadcast from {coming.source} broke off: {error}") from error
        bucket = coming.bucket
        self._counts.append((coming.source, len(bucket.places)))
        if coming.note.last:
            self._digests[coming.source] = iter(coming.note.digests)
        digests = self._in_order() if last else []
        note = replace(coming.note, index=len(self._counts) - 1, last=last, digests=digests)
        memory = bucket.memory[: bucket.used]
        return {"flattened_tensor": memory, "header": bucket.header.to_dict(), NOTE_KEY: note.to_dict()}

    def _in_order(self) -> list[int]:
        return [digest for name, count in self._counts for digest in islice(self._digests[name], count)]


def _by_turns(streams: Sequence[Iterator[_Coming]]) -> Iterator[_Coming]:
    live = deque(streams)
    while live:
        coming = next(live[0])
        yield coming
        if coming.note.last:
            live.popleft()
        else:
            live.rotate(-1)
