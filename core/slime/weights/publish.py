"""Hand a new weight version to the engines, bucket by bucket, and come back with the proof that they hold it.

    fill a bucket, digest its tensors -> all engines load it and account for it -> the next; two buckets take turns,
    so that one is filled while the engines load the other

The engines' half is `slime.weights.ledger`. A version becomes theirs with its last bucket or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from slime.errors import SlimeError
from slime.observe.stopwatch import Stopwatch
from slime.types import Receipt
from slime.weights.bucket import Bucket, SharedBucket
from slime.weights.engine_link import EngineLink, Summary
from slime.weights.fused import Named, in_one_bucket
from slime.weights.receipt import BucketNote, Fingerprint, Started, finish_digests, start_digests
from slime.weights.transport import SharedMemory, Transport, results

if TYPE_CHECKING:
    import torch

NamedTensors = Iterator[tuple[str, "torch.Tensor"]]


def publish(
    tensors: NamedTensors,
    engine_urls: Sequence[str],
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
        engine_urls: engines that are idle or paused by abort; they load in parallel.
        version: what they answer with afterwards.
        bucket_bytes: tensors handed over at once; a larger tensor goes alone.
        timeout_s: for one bucket at one engine.
        bucket_type: from bytes to a bucket in memory that the engines can map.

    Raises:
        SlimeError: a tensor arrived with other bytes, found no place or does not fit; a parameter got nothing; an
            engine died or serves another version. The tensor and the engine are named; no engine that failed took
            the new version.
    """
    assert engine_urls, "somebody must take the weights"
    links = [EngineLink(url, version, timeout_s) for url in engine_urls]
    with ThreadPoolExecutor(len(links)) as pool:
        return publish_over(SharedMemory(links, pool, bucket_type), pool, tensors, version, bucket_bytes)


def publish_over(
    transport: Transport, pool: ThreadPoolExecutor, tensors: NamedTensors, version: int, bucket_bytes: int
) -> Receipt:
    """As `publish`, over any transport; `pool` has a thread for each of its engines."""
    with ExitStack() as stack:
        stack.callback(drain, tensors)
        watch = Stopwatch()
        with watch("connect"):
            results([pool.submit(link.connect) for link in transport.links])
            buckets = [stack.enter_context(transport.new_bucket(bucket_bytes)) for _ in range(2)]
        return _Publisher(version, transport, buckets, watch).run(tensors, pool)


def drain(tensors: NamedTensors) -> None:
    """Run through what is left."""
    for _ in tensors:
        pass


class _Publisher:
    """State of one publish: the bucket being filled, the one on its way, and what was published so far."""

    def __init__(self, version: int, transport: Transport, buckets: Sequence[Bucket], watch: Stopwatch) -> None:
        self.version, self.transport, self.watch = version, transport, watch
        self.filling, self.spare = buckets
        self.digests: Started = []
        self.num_sent = 0
        self.published = Fingerprint()

    def run(self, tensors: NamedTensors, pool: ThreadPoolExecutor) -> Receipt:
        groups = in_one_bucket(tensors)
        while group := self._gather(groups):
            self._add(group)
        self._send(last=True)
        with self.watch("verify"):
            self._check_receipts(self.transport.arrived())
            results([pool.submit(link.check_version) for link in self.transport.links])
        return Receipt(
            version=self.version,
            num_tensors=self.published.num_tensors,
            num_bytes=self.published.num_bytes,
            fingerprint=self.published.summary()["fingerprint"],
            engines=tuple(link.url for link in self.transport.links),
            seconds={name.removeprefix("seconds/"): value for name, value in self.watch.seconds().items()},
        )

    def _gather(self, groups: Iterator[list[Named]]) -> list[Named] | None:
        with self.watch("gather"):
            return next(groups, None)

    def _add(self, group: list[Named]) -> None:
        if not self.filling.has_room(group):
            self._send(last=False)
        with self.watch("digest"):  # of what came, not of the bucket's copy
            self.digests += start_digests([tensor for _, tensor in group])
        with self.watch("fill"):
            self.filling.add(group)

    def _send(self, last: bool) -> None:
        """Wait until the engines have loaded the bucket before, then start them on this one."""
        with self.watch("digest"):
            digests = self._finish_digests()
        with self.watch("load"):
            self.transport.arrived()
        with self.watch("send"):
            self.transport.send(self.filling, BucketNote(self.version, self.num_sent, last, digests))
        self.filling, self.spare = self.spare, self.filling
        self.filling.clear()
        self.digests = []
        self.num_sent += 1

    def _finish_digests(self) -> list[int]:
        digests = finish_digests(self.digests, [meta.numel for meta in self.filling.metadata])
        for (name, tensor), digest in zip(self.filling.tensors(), digests, strict=True):
            self.published.add(name, tensor, digest)
        return digests

    def _check_receipts(self, receipts: Sequence[Summary]) -> None:
        expected = {"version": self.version, **self.published.summary()}
        for link, receipt in zip(self.transport.links, receipts, strict=True):
            if receipt != expected:
                raise SlimeError(
                    f"the engine's receipt {receipt} is not the publisher's {expected}",
                    where=f"publish to engine {link.url}",
                    todo="Publish again; if it stays, engine and trainer run different versions of slime.",
                )
