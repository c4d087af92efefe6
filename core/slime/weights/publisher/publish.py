"""Hand a new weight version to the engines, bucket by bucket, and come back with the proof that they hold it.

    gather tensors -> fill a bucket, start their digests -> on its way to the engines, while the next is filled

The engines' half is `slime.weights.engine.sglang_hooks`. The digests travel last. A version becomes the engines' with
its last bucket or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from typing import TYPE_CHECKING

from slime.net import Endpoint
from slime.observe.stopwatch import Stopwatch
from slime.types import Receipt
from slime.weights.megatron.export import Portion, drain
from slime.weights.publisher.engine_link import EngineLink
from slime.weights.publisher.transport import SharedMemory, Transport
from slime.weights.shared.bucket import Bucket, SharedBucket, in_buckets, loaded_together, num_bytes_of
from slime.weights.shared.receipt import BucketNote, Fingerprint
from slime.weights.shared.views import Named

if TYPE_CHECKING:
    import torch

NamedTensors = Iterator[tuple[str, "torch.Tensor"]]


def publish(
    tensors: NamedTensors,
    engines: Sequence[Endpoint],
    version: int,
    bucket_bytes: int,
    *,
    timeout_s: float = 600.0,
    bucket_type: Callable[[int], Bucket] = SharedBucket,
) -> Receipt:
    """Make every engine serve exactly `tensors` as weight version `version`, through memory of this host.

    Args:
        tensors: HF names and full, unsharded tensors in the engine's dtype. Always drained to its end, also on error:
            an export is collective and the other ranks are in it.
        engines: those to serve; they are idle or paused by abort; they load in parallel.
        version: what they answer with afterwards.
        bucket_bytes: tensors handed over at once; a larger tensor goes alone.
        timeout_s: for one request to one engine.
        bucket_type: from bytes to a bucket in memory that the engines can map.

    Raises:
        SlimeError: a tensor arrived with other bytes, found no place or does not fit; a parameter got nothing; an
            engine died or serves another version. The tensor and the engine are named; no engine that failed took
            the new version.
    """
    assert engines, "somebody must take the weights"
    links = [EngineLink(engine, version, timeout_s) for engine in engines]
    with ThreadPoolExecutor(len(links)) as pool:
        return publish_over(SharedMemory(links, pool, bucket_type), tensors, version, bucket_bytes)


def publish_over(transport: Transport, tensors: NamedTensors, version: int, bucket_bytes: int) -> Receipt:
    """As `publish`, over any transport."""
    return publish_buckets(transport, _portions(tensors, bucket_bytes), version, bucket_bytes)


def publish_buckets(transport: Transport, portions: Iterator[Portion], version: int, bucket_bytes: int) -> Receipt:
    """As `publish`, of tensors that come in buckets."""
    with ExitStack() as stack:
        stack.callback(drain, portions)
        watch = Stopwatch()
        with watch("connect"):
            buckets = [stack.enter_context(transport.new_bucket(bucket_bytes)) for _ in range(transport.num_buckets)]
            stack.enter_context(transport)
        return _Publisher(version, transport, buckets, watch).run(portions)


def _portions(tensors: NamedTensors, capacity: int) -> Iterator[Portion]:
    runs = loaded_together(tensors, name=lambda named: named[0])
    before: list[Named] = []
    for bucket in in_buckets(runs, capacity, lambda run: sum(num_bytes_of(x.shape, x.dtype) for _, x in run)):
        if before:
            yield before, False
        before = bucket
    assert before, "a model has weights"
    yield before, True


class _Publisher:
    """State of one publish: the buckets that take turns, and what was published so far."""

    def __init__(self, version: int, transport: Transport, buckets: Sequence[Bucket], watch: Stopwatch) -> None:
        self.version, self.transport, self.watch = version, transport, watch
        self.buckets = cycle(buckets)
        self.num_sent = 0
        self.published = Fingerprint()

    def run(self, portions: Iterator[Portion]) -> Receipt:
        while portion := self._gather(portions):
            digests = self._hand_over(*portion)
        summary = self.published.summary(digests)
        with self.watch("verify"):
            receipts = self.transport.receipts()
            summary = self.transport.total(summary)
            for link, receipt in zip(self.transport.links, receipts, strict=True):
                link.require_receipt(receipt, summary)
        return Receipt(
            version=self.version,
            num_tensors=summary["tensors"],
            num_bytes=summary["bytes"],
            num_bytes_sent=summary["bytes"] if self.transport.num_bytes is None else self.transport.num_bytes,
            fingerprint=summary["fingerprint"],
            engines=tuple(link.url for link in self.transport.links),
            seconds={name.removeprefix("seconds/"): value for name, value in self.watch.seconds().items()},
            rates=self.transport.rates,
        )

    def _gather(self, portions: Iterator[Portion]) -> Portion | None:
        with self.watch("gather"):
            return next(portions, None)

    def _hand_over(self, tensors: list[Named], last: bool) -> list[int]:
        with self.watch("fill"):
            bucket = next(self.buckets)
            bucket.fill(tensors)
        with self.watch("digest"):  # of what came, not of the bucket's copy
            self.published.add(tensors)
            digests = self.published.digests() if last else []
        tensors.clear()  # their memory is for those gathered next
        with self.watch("send"):
            self.transport.send(bucket, BucketNote(self.version, self.num_sent, last, digests))
        self.num_sent += 1
        return digests
