"""`reward.options` of each reward of this plugin."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class AnswerForm(enum.Enum):
    """The place where a response states its answer."""

    auto = "auto"  # the last box; without one what was last called the answer; without one the last formula or number
    boxed = "boxed"  # the last \boxed{...}
    line = "line"  # the last line "Answer: ..."
    number = "number"  # the last number anywhere


@dataclass
class MathOptions:
    answer: AnswerForm = AnswerForm.auto
    """Where the answer is read: auto, boxed, line or number."""
    wrong_value: float = 0.0
    """Value of a wrong or missing answer; a right one is 1."""


@dataclass
class DeepscalerOptions:
    wrong_value: float = 0.0
    """Value of a wrong answer, of one that is in no box, and of a response that does not end its thinking."""


@dataclass
class DapoOptions:
    wrong_value: float = -1.0
    """Value of a wrong or missing answer; a right one is 1."""


@dataclass
class ArithmeticOptions:
    wrong_value: float = 0.0
    """Value of a wrong answer; a right one is 1."""


OPTIONS: Mapping[str, type] = {
    "math": MathOptions,
    "deepscaler": DeepscalerOptions,
    "dapo": DapoOptions,
    "arithmetic": ArithmeticOptions,
}
