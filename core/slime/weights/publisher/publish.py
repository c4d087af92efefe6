"""Hand a new weight version to the engines, bucket by bucket, and come back with the proof that they hold it.

    gather tensors -> fill a bucket, start their digests -> on its way to the engines, while the next is filled

The engines' half is the distribution slime-sglang. The digests travel last. A version becomes the engines' with
its last bucket or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

from slime.observe.stopwatch import Stopwatch
from slime.types import Receipt
from slime.weights.portions import Portion, drain
from slime.weights.publisher.handover import Handover
from weight_buckets.receipt import BucketNote, Fingerprint


def publish_buckets(handover: Handover, portions: Iterator[Portion], version: int, bucket_bytes: int) -> Receipt:
    """Make every engine of the handover serve exactly these tensors as weight version `version`.

    Args:
        portions: HF names and full, unsharded tensors in the engine's dtype, by bucket. Always drained to its end, also
            on error: an export is collective and the other ranks are in it.
        version: what the engines, which are idle meanwhile, answer with afterwards.
        bucket_bytes: of a bucket; one whose tensors need more grows.

    Raises:
        SlimeError: a tensor arrived with other bytes, found no place or does not fit; a parameter got nothing; an
            engine died or serves another version. The tensor and the engine are named; no engine that failed took
            the new version.
    """
    watch, published = Stopwatch(), Fingerprint()
    with ExitStack() as stack:
        stack.callback(drain, portions)
        with watch("connect"):
            buckets = [stack.enter_context(handover.new_bucket(bucket_bytes)) for _ in range(handover.num_buckets)]
            stack.enter_context(handover)
        for index in count():
            with watch("gather"):  # to the end, where others may still take something from this rank
                portion = next(portions, None)
            if portion is None:
                break
            tensors, last = portion
            with watch("fill"):
                bucket = buckets[index % len(buckets)]
                bucket.fill(tensors)
            with watch("digest"):  # of what came, not of the bucket's copy
                published.add(tensors)
                digests = published.digests() if last else []
            tensors.clear()  # their memory is for those gathered next
            with watch("send"):
                handover.send(bucket, BucketNote(version, index, last, digests))
        with watch("verify"):
            outcome = handover.finish(published.summary(digests))
            for link, receipt in zip(handover.links, outcome.receipts, strict=True):
                link.require_receipt(receipt, outcome.summary)
    return Receipt(
        version=version,
        num_tensors=outcome.summary["tensors"],
        num_bytes=outcome.summary["bytes"],
        num_bytes_sent=outcome.num_bytes,
        fingerprint=outcome.summary["fingerprint"],
        engines=tuple(link.url for link in handover.links),
        seconds={name.removeprefix("seconds/"): value for name, value in watch.seconds().items()},
        rates=outcome.rates,
    )
