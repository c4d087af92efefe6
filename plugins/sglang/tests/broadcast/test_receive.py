"""What an engine holds of a version while it takes it in."""

from __future__ import annotations

import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from slime.net import serve_store
from slime_sglang.broadcast.receive import receive
from slime_sglang.broadcast.stream import announce, part_of
from slime_sglang.engine.side import EngineSide
from weight_buckets.bucket import Bucket
from weight_buckets.receipt import BucketNote

CPU = torch.device("cpu")


def test_memory_that_must_grow_is_given_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bucket is larger than all before, and its memory a new one."""
    sizes = range(8, 48, 8)
    timeout = timedelta(seconds=20)
    store = serve_store("127.0.0.1", timeout=timeout)
    stream = part_of(part_of(store, "version"), "trainer")
    for index, size in enumerate(sizes):
        bucket, last = Bucket(0, CPU), size == sizes[-1]
        bucket.fill([("weight", torch.zeros(size))])
        announce(stream, bucket, BucketNote(1, index, last, [0] * len(sizes) if last else []))
    seen: list[weakref.ref[torch.Tensor]] = []
    held: list[int] = []
    grow = Bucket._grow

    def watched(memory: Bucket, capacity: int) -> None:
        held.append(sum(ref() is not None for ref in seen))
        grow(memory, capacity)

    def load(bucket: dict[str, torch.Tensor]) -> int:
        seen.append(weakref.ref(bucket["flattened_tensor"]))
        return len(seen)

    monkeypatch.setattr(Bucket, "_grow", watched)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        told = {"store": (store.host, store.port), "timeout_s": 20.0, "name": "version", "sources": ["trainer"]}
        side = EngineSide(torch.nn.Module(), CPU, {"trainer": dist.group.WORLD}, load, lambda offer: [offer])
        assert receive(told, side) == len(sizes)
    finally:
        dist.destroy_process_group()
    assert held == [0] * (2 + len(sizes)), "the two memories, and each bucket's"
