"""The options of the buffer `staleness`, without what runs need: every verb reads them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WhenOld(enum.StrEnum):
    """What becomes of a group that is too old."""

    drop = "drop"
    """It is not trained on."""
    refresh = "refresh"
    """Its samples that are too old are generated again."""
    keep = "keep"
    """It goes on."""


@dataclass
class Options:
    """The policy's options (`buffer.options`)."""

    max_lag: int = 1
    """Weight versions that the oldest token of a group may be behind the version that goes on with it."""
    when_old: WhenOld = WhenOld.refresh
    """Of a group that is behind further: drop it, refresh its old samples, or keep it as it is."""
    max_groups: int | None = None
    """Groups held at most; null holds all."""
