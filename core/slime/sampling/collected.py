"""What a rollout hands to a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slime.types import Decision, Group

Progress = Callable[[int, int], None]
"""Called with (groups kept, groups needed)."""


@dataclass(frozen=True)
class Collected:
    """What one step trains on.

    Attributes:
        groups: `prompts_per_step` of them, in the order they were begun (not the order they finished).
        judged: every group that finished, in that order, with what the filter said of it.
        stats: metrics by name; the two under `seconds/` are wall time.
    """

    groups: tuple[Group, ...]
    judged: tuple[tuple[Group, Decision], ...]
    stats: dict[str, float]
