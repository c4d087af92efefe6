"""How the bytes of a version reach the engines: through memory that both sides map, or by broadcast.

Both ask SGLang over HTTP to take them and come back with the engines' receipts: one request for each bucket of shared
memory, and one for a whole version that is broadcast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slime.errors import SlimeError
from slime.weights.publisher.engine_link import EngineLink, Summary
from slime.weights.shared.bucket import Bucket
from slime.weights.shared.receipt import BucketNote
from slime.weights.shared.stream import announce, forget, give_up, part_of

_POLL_S = 2e-4
"""How often a broadcast is looked at."""
_LEAVE_S = 5.0
"""How long engines may take to leave a version that was given up. Under NCCL they wait for a dead one without end."""


class Transport(Protocol):
    """One publish of one version, as a context: leaving it before the last bucket was sent gives the version up."""

    links: Sequence[EngineLink]
    """The engines this process talks to; `receipts` has one of each."""
    num_buckets: int
    """So many take turns: when `send` returns, the next one may be filled anew."""

    @property
    def num_bytes(self) -> int | None:
        """What was written of the version so far; None: its tensors as they are."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...

    def new_bucket(self, capacity: int) -> Bucket:
        """A bucket of `capacity` bytes in memory that this transport can hand over."""

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        """Start the engines on a bucket. Raises what went wrong with those before it."""

    def receipts(self) -> list[Summary]:
        """After the last bucket: what the engines say, all awaited before the first error is raised."""


class SharedMemory:
    """Engines map the publisher's memory.

    Args:
        links: engines of this host that map the memory of this process.
        pool: a thread for each.
        bucket_type: from capacity to a bucket whose memory others can map.
        group: the publishers of one engine, one a tensor-parallel rank of it, each with a bucket on that rank's
            device; the first of them talks to the engine for all. None: this process alone.
    """

    num_bytes: int | None = None

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
        self.receipts()  # an engine loads one bucket at a time
        payloads = self._gather(bucket.payload(note))
        self._on_its_way = [self._pool.submit(link.load, payloads, note.last) for link in self.links]

    def receipts(self) -> list[Summary]:
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


class Broadcast:
    """The publisher broadcasts from its device to every tensor-parallel rank of every engine, bucket after bucket.

    See `slime.weights.shared.stream`.

    Args:
        links: every engine.
        pool: a thread for each.
        group: process group of this process (rank 0) and the engines' ranks, and its name there.
        device: where buckets lie.
        store: of `serve_store`; any number of publishes may have it, one after the other.
    """

    num_bytes: int | None = None

    def __init__(
        self,
        links: Sequence[EngineLink],
        pool: ThreadPoolExecutor,
        group: tuple[str, dist.ProcessGroup],
        device: torch.device,
        store: TCPStore,
    ) -> None:
        self.links, self.new_bucket, self.num_buckets = links, partial(Bucket, device=device), 3
        self._pool, (self._group_name, self._group) = pool, group
        self._server, self._name = store, f"stream {store.add('streams', 1)}"
        self._store = part_of(store, self._name)
        self._in_flight: deque[dist.Work] = deque()
        self._num_announced = 0

    def __enter__(self) -> Self:
        """The engines are asked at once: later the thread that fills buckets would leave the others little time."""
        address = self._server.host, self._server.port
        asking = [self._pool.submit(link.ask_to_receive, self._group_name, address, self._name) for link in self.links]
        try:
            results(asking)
        except SlimeError:
            give_up(self._store, 0)  # the others wait
            raise
        self._requests = [self._pool.submit(link.received) for link in self.links]
        return self

    def __exit__(self, *raised: object) -> None:
        if all(request.done() for request in self._requests):
            forget(self._store, self._num_announced)
            return
        give_up(self._store, self._num_announced)
        wait(self._requests, _LEAVE_S)
        for link, request in zip(self.links, self._requests, strict=True):
            if not request.done():
                link.hang_up()

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        announce(self._store, bucket, note)
        self._num_announced += 1
        work = dist.broadcast(bucket.memory[: bucket.used], group=self._group, group_src=0, async_op=True)
        self._in_flight.append(work)
        while len(self._in_flight) == self.num_buckets:
            self._wait(self._in_flight.popleft())

    def _wait(self, work: dist.Work) -> None:
        """An engine that failed never joins a broadcast, and only its request says so."""
        while not work.is_completed():
            for request in wait(self._requests, _POLL_S).done:
                request.result()
        try:
            work.wait()
        except RuntimeError:  # gloo's, when an engine is gone
            for request in wait(self._requests, return_when=FIRST_EXCEPTION).done:
                request.result()
            raise

    def receipts(self) -> list[Summary]:
        summaries = results(self._requests)
        while self._in_flight:
            self._in_flight.popleft().wait()
        return summaries


def join_engines(
    links: Sequence[EngineLink], pool: ThreadPoolExecutor, name: str, store: TCPStore, backend: str
) -> dist.ProcessGroup:
    """The process group `name` of this process (rank 0, which serves `store`) and every rank of every engine.

    Made by SGLang's own function, as the engines' ends are.
    """
    from sglang.srt.utils.common import init_custom_process_group

    starts = [1 + sum(link.num_ranks for link in links[:index]) for index in range(len(links))]
    world_size = 1 + sum(link.num_ranks for link in links)
    joining = [
        pool.submit(link.join, (store.host, store.port), start, world_size, name, backend)
        for link, start in zip(links, starts, strict=True)
    ]
    ours = part_of(store, name)  # as the function itself does with a store that it opens, on the engines' side
    group = init_custom_process_group(backend=backend, store=ours, world_size=world_size, rank=0, group_name=name)
    results(joining)
    assert isinstance(group, dist.ProcessGroup)
    return group


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    """All results, or the first error once all have ended."""
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
