"""Ways into real engines, and faults on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from slime.engine_client.client import Completion
from slime.net import LOOPBACK, Endpoint, serve_store
from slime.types import Receipt
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.handover import results
from slime.weights.publisher.shared_memory import SharedMemory
from slime_sglang.broadcast.groups import join_engines
from slime_sglang.broadcast.source import Broadcast
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing.publishing import publish_over
from weight_buckets.bucket import Bucket, SharedBucket
from weight_buckets.receipt import BucketNote
from weight_buckets.views import Named

BUCKET = 1 << 18
"""Bytes: small enough that a tiny model takes a dozen buckets, and that its largest tensors go alone."""
LIMIT_S = 600.0
"""Of a request: longer than a test may take, so that none passes that waits for it."""
VICTIM = "model.layers.1.self_attn.k_proj.weight"
"""A tensor of the session's engine, for faults."""
PROMPT = [5, 6, 7]
CPU = torch.device("cpu")
Tensors = Mapping[str, torch.Tensor]


def generate(engine: Endpoint, num_tokens: int = 8, **sampling: Any) -> Completion:
    """One answer to `PROMPT`."""

    async def request() -> Completion:
        client = SGLangClient(engine)
        try:
            return await client.generate(PROMPT, {"max_new_tokens": num_tokens, "ignore_eos": True, **sampling})
        finally:
            await client.close()

    return asyncio.run(request())


def flip_bit(bucket: Bucket, victim: str = VICTIM) -> None:
    """Of a tensor, if it is in the bucket, behind the publisher's back."""
    for name, place in zip(bucket.header.names, bucket.places, strict=True):
        if name == victim:
            bucket.memory[place.start + 7] ^= 1


def half(tensors: Tensors, then: Callable[[], object]) -> Iterator[Named]:
    """All tensors; when half of them have been taken, `then` happens."""
    for index, named in enumerate(tensors.items()):
        if index == len(tensors) // 2:
            then()
        yield named


class Joined(NamedTuple):
    """A process group of this process and engines, its name there, and the store of what is announced."""

    name: str
    group: dist.ProcessGroup
    store: dist.TCPStore


@contextmanager
def joined(name: str, *engines: Endpoint) -> Iterator[Joined]:
    links, store = links_to(engines, 0), serve_store(LOOPBACK)
    with ThreadPoolExecutor(len(links)) as pool:
        results([pool.submit(link.connect) for link in links])
        group = join_engines(links, pool, name, store, "gloo")
    try:
        yield Joined(name, group, store)
    finally:
        dist.destroy_process_group(group)


def links_to(engines: Sequence[Endpoint], version: int) -> list[EngineLink]:
    return [EngineLink(engine, version, LIMIT_S) for engine in engines]


def broadcast(
    tensors: Iterator[Named],
    to: Joined,
    engines: Sequence[Endpoint],
    version: int,
    bucket_type: Callable[..., Bucket] = Bucket,
) -> Receipt:
    """Publish over the group."""
    links = links_to(engines, version)
    with ThreadPoolExecutor(len(links)) as pool:
        transport = Broadcast(links, pool, (to.name, to.group), CPU, to.store)
        transport.new_bucket = partial(bucket_type, device=CPU)
        return publish_over(transport, tensors, version, BUCKET)


class Twins(SharedBucket):
    """The buckets of two publishers, each in memory of its own; in that of the second a tensor may lose a bit."""

    def __init__(self, capacity: int, *, damaged: str) -> None:
        super().__init__(capacity)
        self.twin, self.damaged = SharedBucket(capacity), damaged

    def fill(self, tensors: Sequence[Named]) -> None:
        super().fill(tensors)
        self.twin.fill(tensors)
        flip_bit(self.twin, self.damaged)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self.twin.__exit__(*raised)


class TwoPublishers(SharedMemory):
    """Stands for the publishers of an engine's two ranks, which are two processes: a payload for each rank."""

    def send(self, bucket: Twins, note: BucketNote) -> None:
        self.second = bucket.twin.payload(note)
        super().send(bucket, note)

    def _gather(self, payload: bytes) -> list[bytes]:
        return [payload, self.second]


def publish_by_rank(tensors: Tensors, engine: Endpoint, version: int, *, damaged: str = "") -> Receipt:
    """Publish to each rank by its own publisher; of the second one's tensors `damaged` loses a bit."""
    with ThreadPoolExecutor(1) as pool:
        transport = TwoPublishers(links_to([engine], version), pool, partial(Twins, damaged=damaged))
        return publish_over(transport, iter(tensors.items()), version, BUCKET)
