"""Weights into engines without a trainer: of tensors that are there, instead of an export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from slime.net import Endpoint
from slime.types import Receipt
from slime.weights.portions import Portion
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.handover import Handover
from slime.weights.publisher.publish import publish_buckets
from slime.weights.publisher.shared_memory import SharedMemory
from weight_buckets.adapters import of_adapter
from weight_buckets.bucket import Bucket, SharedBucket, in_buckets, loaded_together
from weight_buckets.views import Named, aligned

TIMEOUT_S = 600.0


def publish(
    tensors: Iterator[Named],
    engines: Sequence[Endpoint],
    version: int,
    bucket_bytes: int,
    *,
    bucket_type: Callable[[int], Bucket] = SharedBucket,
    flushes: bool = True,
) -> Receipt:
    """As a trainer does (`publish_buckets`), through memory of this host.

    Args:
        bucket_type: from bytes to a bucket in memory that the engines can map.
        flushes: see `EngineLink`.
    """
    links = [EngineLink(engine, version, TIMEOUT_S, flushes=flushes) for engine in engines]
    with ThreadPoolExecutor(len(links)) as pool:
        return publish_over(SharedMemory(links, pool, bucket_type), tensors, version, bucket_bytes)


def publish_over(handover: Handover, tensors: Iterator[Named], version: int, bucket_bytes: int) -> Receipt:
    """The same over any handover."""
    return publish_buckets(handover, _portions(tensors, bucket_bytes), version, bucket_bytes)


def _portions(tensors: Iterator[Named], capacity: int) -> Iterator[Portion]:
    before: list[Named] = []
    for bucket in _buckets(tensors, capacity):
        if before:
            yield before, False
        before = bucket
    yield before, True


def _buckets(tensors: Iterator[Named], capacity: int) -> Iterator[list[Named]]:
    """Buckets of weights, or of adapters."""
    for _, same in groupby(tensors, key=lambda named: of_adapter(named[0])):
        runs = loaded_together(same, name=lambda named: named[0])
        yield from in_buckets(runs, capacity, lambda run: sum(aligned(tensor.nbytes) for _, tensor in run))
