"""A version by broadcast, from one trainer rank or several to every tensor-parallel rank of every engine.

A store says what is on its way (`slime_sglang.broadcast.stream`). The first source talks to the engines, over HTTP: one
request each for the whole version.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from slime.errors import Consequence, SlimeError
from slime.weights.publisher.engine_link import READ_LOG, EngineLink, Summary
from slime.weights.publisher.handover import Outcome, results
from slime_sglang.broadcast.stream import announce, forget, give_up, has_failed, part_of, tell_failed
from weight_buckets.bucket import Bucket
from weight_buckets.receipt import BucketNote, total

_POLL_S = 2e-4
"""How often a broadcast is looked at."""
_LOOK_S = 0.05
"""How often other sources are looked at while engines load what is left."""
_LEAVE_S = 5.0
"""How long engines may take to leave a version that was given up. Under NCCL they wait for a dead one without end."""
Report = tuple[Summary, float]
"""Of a source that has sent its part: what it was, and GB/s."""


@dataclass(frozen=True)
class Sources:
    """Who broadcasts a version.

    Attributes:
        version: name of this publish.
        members: the name of each source and its place in `group`; the first talks to the engines.
        group: process group of the sources, over gloo, which ends when one of them does.
    """

    version: str
    members: Mapping[str, int]
    group: dist.ProcessGroup | None

    @property
    def first(self) -> str:
        return next(iter(self.members))

    def report(self, report: Report | None) -> None:
        """Tell the first source that this one has ended; None: in vain."""
        with suppress(RuntimeError):  # the first one is gone, which its own host says
            dist.send_object_list([report], group=self.group, group_dst=self.members[self.first])

    def report_of(self, name: str) -> Report:
        """Wait for the end of another source; raises SlimeError if it failed, or its process ended."""
        told: list[Any] = [None]
        try:
            dist.recv_object_list(told, group=self.group, group_src=self.members[name])
        except RuntimeError as error:
            raise _gone(f"{name} is gone: {error}") from error
        if told == [None]:
            raise _gone(f"{name} could not send its part of the weights")
        report: Report = told[0]
        return report


def _gone(what: str) -> SlimeError:
    return SlimeError(what, where="publish by several trainer ranks", todo=READ_LOG.format("its"))


class Broadcast:
    """One source's part in a version: bucket after bucket from its device.

    Args:
        links: every engine; none for another source than the first.
        pool: a thread for each, and for each other source.
        group: process group of this process (rank 0) and the engines' ranks, and its name there.
        device: where buckets lie.
        store: of `serve_store`, here or in another process; publishes have it one after the other.
        among: all sources of this version; None: this one alone.
    """

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
        self._pool, (self._name, self._group), self._store = pool, group, store
        self._among = among or Sources(f"version {store.add('versions', 1)}", {self._name: 0}, None)
        self._is_first = self._name == self._among.first
        self._version = part_of(store, self._among.version)
        self._stream = part_of(self._version, self._name)
        self._in_flight: deque[dist.Work] = deque()
        self._num_bytes, self._start = 0, 0.0
        self._requests: list[Future[Summary]] = []
        self._reports: dict[str, Future[Report]] = {}

    def __enter__(self) -> Self:
        """The engines are asked at once: later the thread that fills buckets would leave the others little time."""
        sources, address = list(self._among.members), (self._store.host, self._store.port)
        if self._is_first:
            self._reports = {name: self._pool.submit(self._among.report_of, name) for name in sources[1:]}
        try:
            results([self._pool.submit(self._ask, link, sources, address) for link in self.links])
        except SlimeError:
            self._give_up()  # the others wait
            raise
        self._requests = [self._pool.submit(link.received) for link in self.links]
        return self

    def _ask(self, link: EngineLink, sources: list[str], address: tuple[str, int]) -> None:
        stream = {"store": address, "timeout_s": link.timeout_s, "name": self._among.version, "sources": sources}
        link.ask("broadcast", stream, sources[0])

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            return
        if self._is_first and all(request.done() for request in self._requests):
            forget(self._stream)
            if self._reports:
                tell_failed(self._version)
            return
        self._give_up()
        if not self._is_first:
            self._among.report(None)
        wait(self._reports.values(), _LEAVE_S)
        for name, report in self._reports.items():
            if report.done() and report.exception():
                give_up(part_of(self._version, name))  # engines wait for what it does not announce any more
        wait(self._requests, _LEAVE_S)
        for link, request in zip(self.links, self._requests, strict=True):
            if not request.done():
                link.hang_up()

    def _give_up(self) -> None:
        give_up(self._stream)
        if self._reports:
            tell_failed(self._version)

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        self._start = self._start or time.perf_counter()
        announce(self._stream, bucket, note)
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
            what = f"{self._among.first} says that this version failed; it names the reason"
            raise Consequence(what, where=f"publish from {self._name}", todo="See there.")

    def _look_for_ends(self) -> None:
        """Of other sources."""
        for report in self._reports.values():
            if report.done():
                report.result()

    def finish(self, sent: Summary) -> Outcome:
        while self._reports and wait(self._requests, _LOOK_S).not_done:
            self._look_for_ends()
        receipts: list[Summary] = results(self._requests)
        while self._in_flight:
            self._wait(self._in_flight.popleft())
        rate = self._num_bytes / 1e9 / (time.perf_counter() - self._start)
        if not self._is_first:
            self._among.report((sent, rate))
            return Outcome(sent, receipts, sent["bytes"])
        others = dict(zip(self._reports, results(list(self._reports.values())), strict=True))
        for name in self._among.members:  # by now every engine has read all of it
            forget(part_of(self._version, name))
        rates = {self._name: rate, **{name: rate for name, (_, rate) in others.items()}}
        summary = total([sent, *(each for each, _ in others.values())])
        return Outcome(summary, receipts, summary["bytes"], rates)
