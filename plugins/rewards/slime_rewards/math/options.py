"""The place where a response states its answer."""

from __future__ import annotations

import enum


class AnswerForm(enum.Enum):
    auto = "auto"  # the last box; without one what was last called the answer; without one the last formula or number
    boxed = "boxed"  # the last \boxed{...}
    line = "line"  # the last line "Answer: ..."
    number = "number"  # the last number anywhere
