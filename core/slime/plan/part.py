"""A part of a plan that a plugin brings (hook `slime_plan_parts`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class PlanPart(Protocol):
    """What a plan says of one thing."""

    def sections(self) -> Iterable[tuple[str, list[str]]]:
        """Title and lines of each section of the plan's text."""

    def document(self) -> Mapping[str, Any]:
        """Fields of `slime plan --json`, as plain values."""
