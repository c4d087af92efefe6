"""Options of the program `gym` and the reward `reasoning-gym`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class GymOptions:
    path: str = ""
    """The environment: `FILE.py:CLASS` or `module:CLASS`, with `reset` and `step` as docs/environments.md says."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keywords of the class."""
    max_turns: int = 16
    """Responses of a sample at most. The rewards until then count."""


@dataclass
class ReasoningGymOptions:
    tag: str | None = "answer"
    """The answer stands between `<answer>` and `</answer>`, the last one where there are several; a response without
    it gets 0. null: the whole response is the answer, less its thinking."""
