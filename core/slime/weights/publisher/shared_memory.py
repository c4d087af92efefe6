"""A version through memory that trainers and engines map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Self

import torch.distributed as dist

from slime.errors import SlimeError
from slime.weights.publisher.engine_link import EngineLink, Summary
from slime.weights.publisher.handover import Outcome, Sender, TrainerSide, results
from weight_buckets.bucket import Bucket, CudaBucket, SharedBucket
from weight_buckets.receipt import BucketNote


class SharedMemorySender(Sender):
    """Engines of this host, each with the ranks on its own devices or with rank 0."""

    def __init__(self, side: TrainerSide) -> None:
        self.receivers, self._serves, self._peers = side.receivers, side.serves, side.peers
        kind = CudaBucket if side.cfg.cluster.on_gpus else SharedBucket
        self._bucket_type = partial(kind, device=side.device)

    def begin(
        self, version: int, links: Sequence[EngineLink], pool: ThreadPoolExecutor, senders: Sequence[int | None]
    ) -> SharedMemory | None:
        return SharedMemory(links, pool, self._bucket_type, self._peers) if self._serves else None


class SharedMemory:
    """Engines map the publisher's memory; a request for each bucket.

    Args:
        links: engines of this host that map the memory of this process.
        pool: a thread for each.
        bucket_type: from capacity to a bucket whose memory others can map.
        group: the publishers of one engine, one a tensor-parallel rank of it, each with a bucket on that rank's
            device; the first of them talks to the engine for all. None: this process alone.
    """

    def __init__(
        self,
        links: Sequence[EngineLink],
        pool: ThreadPoolExecutor,
        bucket_type: Callable[[int], Bucket],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.links, self.new_bucket, self.num_buckets = links, bucket_type, 2
        self._pool, self._group = pool, group
        self._on_its_way: list[Future[Summary]] = []

    def __enter__(self) -> Self:
        results([self._pool.submit(link.connect) for link in self.links])
        return self

    def __exit__(self, *raised: object) -> None:
        wait(self._on_its_way)  # the engines read this process's memory

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        self.await_answers()  # an engine loads one bucket at a time
        payloads = self._gather(bucket.payload(note))
        self._on_its_way = [self._pool.submit(link.load, payloads, note.last) for link in self.links]

    def finish(self, sent: Summary) -> Outcome:
        return Outcome(sent, self.await_answers(), sent["bytes"])

    def await_answers(self) -> list[Summary]:
        on_its_way, self._on_its_way = self._on_its_way, []
        if self._group is None:
            return results(on_its_way)
        summaries: list[Summary] = []
        fault: list[SlimeError | None] = [None]
        try:
            summaries = results(on_its_way)
        except SlimeError as error:
            fault = [error]
        dist.broadcast_object_list(fault, group=self._group, group_src=0)
        if fault[0]:
            raise fault[0]
        return summaries

    def _gather(self, payload: bytes) -> list[bytes]:
        """The payloads of all publishers of the engine, on the first of them."""
        if self._group is None:
            return [payload]
        gathered = [b""] * self._group.size() if self._group.rank() == 0 else None
        dist.gather_object(payload, gathered, group=self._group, group_dst=0)
        return gathered or []
