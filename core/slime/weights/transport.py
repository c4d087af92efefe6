"""How the bytes of a bucket reach the engines: through memory that both sides map, or by broadcast.

Both ask SGLang over HTTP to take a bucket, one request an engine, and come back with the engines' receipts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from slime import torchvision_ops
from slime.errors import SlimeError
from slime.weights.bucket import Bucket
from slime.weights.engine_link import EngineLink, Summary
from slime.weights.receipt import BucketNote


class Transport(Protocol):
    """One publish of one version; `send` and `arrived` take turns."""

    links: Sequence[EngineLink]
    """The engines this process talks to; `arrived` has a receipt of each."""

    def new_bucket(self, capacity: int) -> Bucket:
        """A bucket of `capacity` bytes in memory that this transport can hand over."""

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        """Start the engines on a bucket; it must not change until it has arrived."""

    def arrived(self) -> list[Summary]:
        """The receipts of the bucket on its way, all awaited before the first error is raised; empty if there is
        none."""


class SharedMemory:
    """Engines map the publisher's memory.

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
        self.links, self.new_bucket = links, bucket_type
        self._pool, self._group = pool, group
        self._on_its_way: list[Future[Summary]] = []

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        payloads = self._gather(bucket.payload(note))
        self._on_its_way = [self._pool.submit(link.load, payloads, note.last) for link in self.links]

    def arrived(self) -> list[Summary]:
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
    """The publisher broadcasts from its device to every tensor-parallel rank of every engine.

    Args:
        links: every engine.
        pool: a thread for each.
        group: process group of this process (rank 0) and the engines' ranks, and its name there.
        device: where buckets lie.
    """

    def __init__(
        self,
        links: Sequence[EngineLink],
        pool: ThreadPoolExecutor,
        group: tuple[str, dist.ProcessGroup],
        device: torch.device,
    ) -> None:
        self.links, self.new_bucket = links, partial(Bucket, device=device)
        self._pool, (self._group_name, self._group) = pool, group
        self._on_its_way: list[Future[Summary]] = []
        self._work: dist.Work | None = None

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        self._on_its_way = [self._pool.submit(link.receive, bucket, note, self._group_name) for link in self.links]
        self._work = dist.broadcast(bucket.memory[: bucket.used], group=self._group, group_src=0, async_op=True)

    def arrived(self) -> list[Summary]:
        """The requests first: an engine that died never joins the broadcast, and only they say so."""
        on_its_way, self._on_its_way = self._on_its_way, []
        summaries = results(on_its_way)
        if self._work:
            self._work.wait()
            self._work = None
        return summaries


def join_engines(
    links: Sequence[EngineLink], pool: ThreadPoolExecutor, name: str, master: tuple[str, int], backend: str
) -> dist.ProcessGroup:
    """The process group `name` of this process (rank 0, which listens at `master`) and every rank of every engine.

    Made by SGLang's own function, as the engines' ends are.
    """
    torchvision_ops.ensure()  # SGLang imports torchvision
    from sglang.srt.utils.common import init_custom_process_group

    starts = [1 + sum(link.num_ranks for link in links[:index]) for index in range(len(links))]
    world_size = 1 + sum(link.num_ranks for link in links)
    joining = [
        pool.submit(link.join, master, start, world_size, name, backend)
        for link, start in zip(links, starts, strict=True)
    ]
    address, port = master
    group = init_custom_process_group(
        backend=backend, init_method=f"tcp://{address}:{port}", world_size=world_size, rank=0, group_name=name
    )
    results(joining)
    assert isinstance(group, dist.ProcessGroup)
    return group


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    """All results, or the first error once all have ended."""
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
