"""A version as a stream of broadcasts: what each bucket holds is announced in a store, under its number.

Announced ahead, it lets an engine wait for the next bucket while it loads one. The store stays from one version to the
next; each stream has a part of it for its own.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import count, cycle
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from slime.net import join_store
from slime.weights.shared.bucket import Bucket
from slime.weights.shared.receipt import NOTE_KEY, BucketNote


@functools.lru_cache(maxsize=1)
def publishers_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """An engine's end of the publisher's store, the same for every stream."""
    return join_store(host, port, timedelta(seconds=timeout_s))


def part_of(store: TCPStore, name: str) -> Store:
    """What one stream may call its own."""
    return PrefixStore(name, store)


def announce(store: Store, bucket: Bucket, note: BucketNote) -> None:
    """Tell what the broadcast that begins now brings."""
    tensors = {
        "names": [meta.name for meta in bucket.metadata],
        "shapes": [list(meta.shape) for meta in bucket.metadata],
        "dtypes": [str(meta.dtype).removeprefix("torch.") for meta in bucket.metadata],
    }
    store.set(str(note.index), json.dumps({"tensors": tensors, "note": note.to_dict()}))


def give_up(store: Store, num_announced: int) -> None:
    """End a stream before its last bucket."""
    store.set(str(num_announced), json.dumps(None))


def forget(store: Store, num_announced: int) -> None:
    """Clear the store of a stream that every engine has read."""
    for index in range(num_announced):
        store.delete_key(str(index))


def receive_buckets(store: Store, group: dist.ProcessGroup, device: torch.device) -> Iterator[dict[str, Any]]:
    """The buckets of a version, as SGLang takes them; each comes while the next is on the wire, until the last.

    Two memories take turns: a broadcast begins once the device is done with all that it had to do until then, the
    loading from its memory included.

    Raises:
        RuntimeError: the publisher gave up, is gone, or is silent for longer than the store's timeout.
    """
    memories = cycle([Bucket(0, device), Bucket(0, device)])
    before: tuple[Bucket, dist.Work, dict[str, Any]] | None = None
    for index in count():
        told = json.loads(store.get(str(index)))
        if told is None:
            raise RuntimeError("the publisher gave this version up")
        bucket = next(memories)
        _reserve(bucket, **told["tensors"])
        work = dist.broadcast(bucket.memory[: bucket.used], group=group, group_src=0, async_op=True)
        if before:
            yield _as_payload(*before)
        before = bucket, work, told["note"]
        if told["note"]["last"]:
            yield _as_payload(*before)
            return


def _reserve(bucket: Bucket, names: list[str], shapes: list[list[int]], dtypes: list[str]) -> None:
    bucket.reserve(names, shapes, [getattr(torch, dtype) for dtype in dtypes])


def _as_payload(bucket: Bucket, work: dist.Work, note: dict[str, Any]) -> dict[str, Any]:
    work.wait()
    return {"flattened_tensor": bucket.memory[: bucket.used], "metadata": bucket.metadata, NOTE_KEY: note}
