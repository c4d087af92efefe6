"""The trainers' side of every transport: a sender, and a handover for each version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

from slime.config.schema import SlimeConfig
from slime.weights.portions import Receivers
from slime.weights.publisher.engine_link import EngineLink, Summary
from weight_buckets.bucket import Bucket
from weight_buckets.receipt import BucketNote


@dataclass(frozen=True)
class Outcome:
    """The outcome of a publish: the version's summary, as every engine should say it, what each says, and the bytes
    that were sent or written."""

    summary: Summary
    receipts: Sequence[Summary]
    num_bytes: int
    rates: Mapping[str, float] = field(default_factory=dict)
    """GB/s of each source, from its first bucket to its last; empty where nothing is sent."""


class Handover(Protocol):
    """One publish of one version, as a context: leaving it before the last bucket was sent gives the version up."""

    links: Sequence[EngineLink]
    """The engines this process talks to."""
    num_buckets: int
    """Buckets in the ring. After `send`, the next one may be overwritten."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...

    def new_bucket(self, capacity: int) -> Bucket:
        """A bucket of `capacity` bytes in memory that can be handed over so."""

    def send(self, bucket: Bucket, note: BucketNote) -> None:
        """Start the engines on a bucket. Raises what went wrong with those before it."""

    def finish(self, sent: Summary) -> Outcome:
        """After the last bucket, with the summary of what this process sent. All engines are awaited before the first
        error is raised."""


@dataclass(frozen=True)
class TrainerSide:
    """Facts that the sender of a trainer rank needs.

    Attributes:
        host: address at which the engines' hosts, and the other ranks, reach this one.
        serves: this rank hands some engine its weights.
        peers: the ranks that hand one engine its weights together, over gloo; None: this rank alone.
        receivers: trainer ranks that need whole tensors to serve engines: rank 0, or all (None).
    """

    cfg: SlimeConfig
    device: torch.device
    host: str
    serves: bool
    peers: dist.ProcessGroup | None
    receivers: Receivers


class Sender(Protocol):
    """One trainer rank's part in every publish of a run."""

    receivers: Receivers
    """Trainer ranks that tensors are gathered on; None: all."""

    def begin(
        self, version: int, links: Sequence[EngineLink], pool: ThreadPoolExecutor, senders: Sequence[int | None]
    ) -> Handover | None:
        """Collective: a new version's handover; None on ranks that send nothing.

        Args:
            links: the engines that this rank serves.
            pool: a thread for each of them, and for each of `senders`.
            senders: ranks that have something to send of this version, of `receivers`.
        """


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    """All results, or the first error once all have ended."""
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
