"""Hand a new weight version to the engines, bucket by bucket, and come back with the proof that they hold it.

    fill a bucket, digest its tensors -> all engines load it and account for it -> the next; two buckets take turns,
    so that one is filled while the engines load the other

The engines' half is `slime.weights.ledger`. A version becomes theirs with its last bucket or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError
from slime.observe.stopwatch import Stopwatch
from slime.types import Receipt
from slime.weights.bucket import SharedBucket
from slime.weights.engine_link import EngineLink
from slime.weights.receipt import BucketNote, Fingerprint, tensor_digest

if TYPE_CHECKING:
    import torch

Summary = dict[str, Any]


def publish(
    tensors: Iterator[tuple[str, torch.Tensor]],
    engine_urls: Sequence[str],
    version: int,
    bucket_bytes: int,
    *,
    timeout_s: float = 600.0,
    bucket_type: type[SharedBucket] = SharedBucket,
) -> Receipt:
    """Make every engine serve exactly `tensors` as weight version `version`.

    Args:
        tensors: HF names and full, unsharded tensors in the engine's dtype. Always drained to its end, also on error:
            an export is collective and the other ranks are in it.
        engine_urls: engines that are idle or paused by abort; they load in parallel.
        version: what they answer with afterwards.
        bucket_bytes: tensors handed over at once; a larger tensor goes alone.
        timeout_s: for one bucket at one engine.
        bucket_type: the transport.

    Raises:
        SlimeError: a tensor arrived with other bytes, found no place or does not fit; a parameter got nothing; an
            engine died or serves another version. The tensor and the engine are named; no engine that failed took
            the new version.
    """
    assert engine_urls, "somebody must take the weights"
    with ExitStack() as stack:
        stack.callback(_drain, tensors)
        pool = stack.enter_context(ThreadPoolExecutor(len(engine_urls)))
        buckets = [stack.enter_context(bucket_type(bucket_bytes)) for _ in range(2)]
        links = [EngineLink(url, version, timeout_s) for url in engine_urls]
        publisher = _Publisher(version, links, buckets, pool)
        return publisher.run(tensors)


def _drain(tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    for _ in tensors:
        pass


class _Publisher:
    """State of one publish: the bucket being filled, the one on its way, and what was published so far."""

    def __init__(
        self, version: int, links: Sequence[EngineLink], buckets: Sequence[SharedBucket], pool: ThreadPoolExecutor
    ) -> None:
        self.version, self.links, self.pool = version, links, pool
        self.filling, self.spare = buckets
        self.digests: list[int] = []
        self.num_sent = 0
        self.published = Fingerprint()
        self.on_its_way: list[Future[Summary]] = []
        self.watch = Stopwatch()

    def run(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> Receipt:
        with self.watch("connect"):
            self._at_every_engine(EngineLink.connect)
        while named := self._gather(tensors):
            self._add(*named)
        self._send(last=True)
        with self.watch("verify"):
            self._check_receipts(self._arrived())
            self._at_every_engine(EngineLink.check_version)
        return Receipt(
            version=self.version,
            num_tensors=self.published.num_tensors,
            num_bytes=self.published.num_bytes,
            engines=tuple(link.url for link in self.links),
            seconds={name.removeprefix("seconds/"): value for name, value in self.watch.seconds().items()},
        )

    def _gather(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> tuple[str, torch.Tensor] | None:
        with self.watch("gather"):
            return next(tensors, None)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if not self.filling.has_room(tensor):
            self._send(last=False)
        with self.watch("digest"):
            digest = tensor_digest(tensor)
        with self.watch("fill"):
            self.filling.add(name, tensor)
        self.digests.append(digest)
        self.published.add(name, tensor, digest)

    def _send(self, last: bool) -> None:
        """Wait until the engines have loaded the bucket before, then start them on this one."""
        with self.watch("send"):
            self._arrived()
        note = BucketNote(self.version, self.num_sent, last, self.digests)
        payload = self.filling.payload(note)
        self.on_its_way = [self.pool.submit(link.load, payload, last) for link in self.links]
        self.filling, self.spare = self.spare, self.filling
        self.filling.clear()
        self.digests = []
        self.num_sent += 1

    def _arrived(self) -> list[Summary]:
        """The engines' answers to the bucket on its way, all awaited before the first error is raised."""
        on_its_way, self.on_its_way = self.on_its_way, []
        return _results(on_its_way)

    def _at_every_engine(self, method: Any) -> None:
        _results([self.pool.submit(method, link) for link in self.links])

    def _check_receipts(self, receipts: Sequence[Summary]) -> None:
        expected = {"version": self.version, **self.published.summary()}
        for link, receipt in zip(self.links, receipts, strict=True):
            if receipt != expected:
                raise SlimeError(
                    f"the engine's receipt {receipt} is not the publisher's {expected}",
                    where=f"publish to engine {link.url}",
                    todo="Publish again; if it stays, engine and trainer run different versions of slime.",
                )


def _results(futures: Sequence[Future[Any]]) -> list[Any]:
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]
