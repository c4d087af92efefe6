"""A version as a trainer gives it: whole tensors by Hugging Face names, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from weight_buckets.views import Named

Receivers = tuple[int, ...] | None
"""Trainer ranks that get whole tensors; None: all."""
Portion = tuple[list[Named], bool]
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


def drain(portions: Iterator[object]) -> None:
    """Take part in an export to its end."""
    for _ in portions:
        pass
