"""How the bytes of a version reach the engines: through memory that both sides map, or by broadcast.

Both ask SGLang over HTTP to take them and come back with the engines' receipts: one request for each bucket of shared
memory, and one for a whole version that is broadcast.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slime.errors import SlimeError
from slime.weights.publisher.engine_link import EngineLink, Summary
from slime.weights.publisher.sources import Report, Sources
from slime.weights.shared.bucket import Bucket
from slime.weights.shared.receipt import BucketNote, total
from slime.weights.shared.stream import announce, forget, give_up, give_up_for, has_failed, part_of, tell_failed

_POLL_S = 2e-4
"""How often a broadcast is looked at."""
_LOOK_S = 0.05
"""How often other sources are looked at while engines load what is left."""
_LEAVE_S = 5.0
"""How long engines may take to leave a version that was given up. Under NCCL they wait for a dead one without end."""


class Transport(Protocol):
    """One publish of one version, as a context: leaving it before the last bucket was sent gives the version up."""

    links: Sequence[EngineLink]
    """The engines this process talks to."""
    num_buckets: int
    """Buckets in the ring. After `send`, the next one may be overwritten."""
    rates: Mapping[str, float]
    """After `finish`: GB/s of each source, from its first bucket to its last. Empty where nothing is sent."""

    @property
    def num_bytes(self) -> int | None:
        """What was written of the version so far; None: its tensors as they are."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...

    def new_bucket(self, capacity: int) -> Bucket:
        """A bucket of `capacity` bytes in memory that this transport can hand over."""

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        """Start the engines on a bucket. Raises what went wrong with those before it."""

    def finish(self, sent: Summary) -> tuple[Summary, list[Summary]]:
        """After the last bucket: what each engine should say, and what it says. All are awaited before the first error
        is raised.

        Args:
            sent: the summary of what this process sent.
        """


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
        self.rates: Mapping[str, float] = {}
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

    def finish(self, sent: Summary) -> tuple[Summary, list[Summary]]:
        return sent, self.await_answers()

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


class Broadcast:
    """The publisher broadcasts from its device to every tensor-parallel rank of every engine, bucket after bucket.

    See `slime.weights.shared.stream`. Several sources may send a version, each a part of it; the first of them talks to
    the engines for all.

    Args:
        links: every engine; none for another source than the first.
        pool: a thread for each.
        group: process group of this process (rank 0) and the engines' ranks, and its name there.
        device: where buckets lie.
        store: of `serve_store`, or the same store in another process; any number of publishes may have it, one after
            the other.
        among: all sources of this version; None: this one alone.
    """

    num_bytes: int | None = None

    def __init__(
        self,
        links: Sequence[EngineLink],
        pool: ThreadPoolExecutor,
        group: tuple[str, dist.ProcessGroup],
        device: torch.device,
        store: TCPStore,
        *,
        among: Sources | None = None,
    ) -> None:
        self.links, self.new_bucket, self.num_buckets = links, partial(Bucket, device=device), 3
        self.rates: Mapping[str, float] = {}
        self._pool, (self._name, self._group) = pool, group
        self._among = among or Sources(f"stream {store.add('streams', 1)}", {self._name: 0}, None)
        self._server, self._stream = store, self._among.stream
        self._version = part_of(store, self._stream)
        self._store = part_of(self._version, self._name)
        self._in_flight: deque[dist.Work] = deque()
        self._num_announced, self._num_bytes, self._start = 0, 0, 0.0
        self._requests: list[Future[Summary]] = []
        self._reports: dict[str, Future[Report]] = {}

    @property
    def _is_first(self) -> bool:
        return self._name == next(iter(self._among.members))

    def __enter__(self) -> Self:
        """The engines are asked at once: later the thread that fills buckets would leave the others little time."""
        address, names = (self._server.host, self._server.port), list(self._among.members)
        if self._is_first:
            self._reports = {name: self._pool.submit(self._among.report_of, name) for name in names[1:]}
        asking = [self._pool.submit(link.ask_to_receive, names, address, self._stream) for link in self.links]
        try:
            results(asking)
        except SlimeError:
            self._give_up()  # the others wait
            raise
        self._requests = [self._pool.submit(link.received) for link in self.links]
        return self

    def __exit__(self, *raised: object) -> None:
        failed = raised[0] is not None
        if all(request.done() for request in self._requests) and (self._is_first or not failed):
            forget(self._store, self._num_announced)
            if failed and self._reports:
                tell_failed(self._version)
            return
        self._give_up()
        if not self._is_first:
            self._among.report(None)
        wait(self._reports.values(), _LEAVE_S)
        for name in [name for name, report in self._reports.items() if report.done() and report.exception()]:
            give_up_for(part_of(self._version, name))  # engines wait for what it does not announce any more
        wait(self._requests, _LEAVE_S)
        for link, request in zip(self.links, self._requests, strict=True):
            if not request.done():
                link.hang_up()

    def _give_up(self) -> None:
        give_up(self._store, self._num_announced)
        if self._reports:
            tell_failed(self._version)

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        self._start = self._start or time.perf_counter()
        announce(self._store, bucket, note)
        self._num_announced += 1
        self._num_bytes += bucket.used
        work = dist.broadcast(bucket.memory[: bucket.used], group=self._group, group_src=0, async_op=True)
        self._in_flight.append(work)
        while len(self._in_flight) == self.num_buckets:
            self._wait(self._in_flight.popleft())

    def _wait(self, work: dist.Work) -> None:
        """An engine that failed never joins a broadcast, and only its request says so; or the first source, which has
        it, if this is another."""
        while not work.is_completed():
            self._look_for_faults()
        try:
            work.wait()
        except RuntimeError:  # gloo's, when an engine is gone
            for request in wait(self._requests, return_when=FIRST_EXCEPTION).done:
                request.result()
            raise

    def _look_for_faults(self) -> None:
        if self._is_first:
            for request in wait(self._requests, _POLL_S).done:
                request.result()
            self._look_for_ends()
            return
        time.sleep(_POLL_S)
        if has_failed(self._version):
            what = f"{next(iter(self._among.members))} says that this version failed; it names the reason"
            raise SlimeError(what, where=f"publish from {self._name}", todo="See there.")

    def _look_for_ends(self) -> None:
        """Of other sources."""
        for report in self._reports.values():
            if report.done():
                report.result()

    def finish(self, sent: Summary) -> tuple[Summary, list[Summary]]:
        while self._reports and wait(self._requests, _LOOK_S).not_done:
            self._look_for_ends()
        receipts: list[Summary] = results(self._requests)
        while self._in_flight:
            self._wait(self._in_flight.popleft())
        rate = self._num_bytes / 1e9 / (time.perf_counter() - self._start)
        if not self._is_first:
            self._among.report((sent, rate))
            return sent, receipts
        others = dict(zip(self._reports, results(list(self._reports.values())), strict=True))
        self.rates = {self._name: rate, **{name: rate for name, (_, rate) in others.items()}}
        return total([sent, *(each for each, _ in others.values())]), receipts


def join_engines(
    links: Sequence[EngineLink], pool: ThreadPoolExecutor, name: str, store: TCPStore, backend: str
) -> dist.ProcessGroup:
    """The process group `name` of this process (rank 0, which serves `store`) and every rank of every engine."""
    joining = ask_to_join(links, pool, name, store, backend)
    group = join_as_source(name, store, backend, num_ranks(links))
    results(joining)
    return group


def num_ranks(links: Sequence[EngineLink]) -> int:
    """Of all engines."""
    return sum(link.num_ranks for link in links)


def ask_to_join(
    links: Sequence[EngineLink], pool: ThreadPoolExecutor, name: str, store: TCPStore, backend: str
) -> list[Future[None]]:
    """Have the engines join the process group `name`, of which a source is rank 0."""
    starts = [1 + num_ranks(links[:index]) for index in range(len(links))]
    world_size = 1 + num_ranks(links)
    return [
        pool.submit(link.join, (store.host, store.port), start, world_size, name, backend)
        for link, start in zip(links, starts, strict=True)
    ]


def join_as_source(name: str, store: TCPStore, backend: str, num_engine_ranks: int) -> dist.ProcessGroup:
    """A source's end of it. Made by SGLang's own function, as the engines' ends are."""
    from sglang.srt.utils.common import init_custom_process_group

    ours = part_of(store, name)  # as the function itself does with a store that it opens, on the engines' side
    size = 1 + num_engine_ranks
    group = init_custom_process_group(backend=backend, store=ours, world_size=size, rank=0, group_name=name)
    assert isinstance(group, dist.ProcessGroup)
    return group


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    """All results, or the first error once all have ended."""
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
