"""How the bytes of a version reach the engines, and the way of those on one host: memory that both sides map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch.distributed as dist

from slime.errors import SlimeError
from slime.weights.publisher.engine_link import EngineLink, Summary
from slime.weights.shared.bucket import Bucket
from slime.weights.shared.receipt import BucketNote


@dataclass(frozen=True)
class Outcome:
    """What came of a publish.

    Attributes:
        summary: of the version, as every engine should say it.
        receipts: what each engine says.
        num_bytes: that were sent or written of it.
        rates: GB/s of each source, from its first bucket to its last; empty where nothing is sent.
    """

    summary: Summary
    receipts: Sequence[Summary]
    num_bytes: int
    rates: Mapping[str, float] = field(default_factory=dict)


class Transport(Protocol):
    """One publish of one version, as a context: leaving it before the last bucket was sent gives the version up."""

    links: Sequence[EngineLink]
    """The engines this process talks to."""
    num_buckets: int
    """Buckets in the ring. After `send`, the next one may be overwritten."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...

    def new_bucket(self, capacity: int) -> Bucket:
        """A bucket of `capacity` bytes in memory that this transport can hand over."""

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        """Start the engines on a bucket. Raises what went wrong with those before it."""

    def finish(self, sent: Summary) -> Outcome:
        """After the last bucket. All engines are awaited before the first error is raised.

        Args:
            sent: the summary of what this process sent.
        """


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


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    """All results, or the first error once all have ended."""
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
