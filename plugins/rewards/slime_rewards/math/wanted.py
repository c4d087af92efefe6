"""Labels, in the forms in which data sets have them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from slime_rewards.math.answers import last_boxed

_LIST_OF_ONE = re.compile(r"\[\s*(['\"])((?:(?!\1).)*)\1\s*\]", re.DOTALL)
_TAG = re.compile(r".*<answer>((?:(?!</?answer>).)*)</answer>\s*", re.DOTALL)


def label_text(label: Any) -> str | None:
    """A label as text, None if it is neither a non-empty string nor a finite number."""
    if isinstance(label, bool) or not isinstance(label, str | int | float | Decimal):
        return None
    if isinstance(label, float | Decimal):
        number = label if isinstance(label, Decimal) else Decimal(repr(float(label)))
        return format(number, "f") if math.isfinite(label) else None  # 1e-05 is 0.00001
    return _stated(str(label).strip()) or None


def _stated(label: str) -> str:
    """Answer in a label that says more: GSM8K's published answer, a whole solution, a list of one as text."""
    if found := _LIST_OF_ONE.fullmatch(label):
        label = found[2].strip()
    if "####" in label:
        label = label.rpartition("####")[2].strip()
    if tag := _TAG.fullmatch(label):
        label = tag[1].strip()
    if "\\boxed{" in label and not label.startswith("\\boxed"):
        label = last_boxed(label) or label
    return label
