"""A version as a trainer gives it: whole tensors by Hugging Face names, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from slime.weights.quantized import Quantizer
    from weight_buckets.views import Named

Receivers = tuple[int, ...] | None
"""Trainer ranks that get whole tensors; None: all."""
Portion = tuple[list["Named"], bool]
"""Tensors of a bucket, and whether this rank receives nothing after them."""


class Export(Protocol):
    """All buckets of a version, the same on every rank."""

    @property
    def receivers(self) -> Sequence[int | None]:
        """Who receives a bucket."""

    def run(self) -> Iterator[Portion]:
        """The tensors of each bucket that this rank receives; collective. Every rank runs through it to the end.

        Tensors have the dtype and device of their parameters, or are quantised, and belong to the caller.
        """


class Weights(Protocol):
    """A trainer rank's weights, as they are published."""

    @property
    def device(self) -> torch.device:
        """The device that they are on."""

    def export_plan(
        self, bucket_bytes: int, receivers: Receivers, *, drafts: bool, quantizer: Quantizer | None, whole: bool
    ) -> Export:
        """The weights in buckets, divided among `receivers`; if not `whole`, of a model whose adapters are published as
        they are, these alone."""


def drain(portions: Iterator[object]) -> None:
    """Take part in an export to its end."""
    for _ in portions:
        pass
