r"""Decides whether two answers are the same: exactly as numbers where both are, else as LaTeX with one spelling.

No algebra: `2\sqrt{3}` and `\sqrt{12}` differ here. Labels of the usual math sets are numbers or short expressions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

_Replacement = str | Callable[[re.Match[str]], str]

# In this order. What only changes the look of a formula goes; several spellings become one; blanks stay for now.
# A row break is matched before the commands that its second backslash and what follows would look like.
_COMMANDS: list[tuple[re.Pattern[str], _Replacement]] = [
    (re.compile(r"(\\\\)|\\(?:left|right)(?![a-zA-Z])|\\!|\\\$"), r"\1"),
    (re.compile(r"(\\\\)|\\[,;: ]|\\q?quad(?![a-zA-Z])"), lambda found: found[1] or " "),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}"), r"\\text{\1}"),
    (re.compile(r"\\frac([0-9])([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt([0-9a-zA-Z])"), r"\\sqrt{\1}"),
]
_SIGNS = str.maketrans({"$": "", "~": " ", "−": "-"})
_BEFORE_COMMA = re.compile(r"\s+,|\{,\}")
_BOX = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)
_NAME = re.compile(r"\s*([a-zA-Z])\s*(?:=|\\in(?![a-zA-Z]))")
_UNIT = re.compile(r"(?<=\S)\s*(?:\\text\{([^{}]*)\}|(\\?%)|(\^(?:\\circ|\{\\circ\})))\s*$")
_LOOKS = re.compile(r"\\text\{([^{}]*)\}|\\?%|\^\{\\circ\}|\^\\circ")
_MAGNITUDES = ("hundred", "thousand", "million", "billion", "trillion", "dozen")
# Blanks between digits tell two numbers from one, and after a comma a list from thousands.
_BLANKS = re.compile(r"(?<=\d)(,?)\s+(?=\d)|\s+")

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_DECIMAL = re.compile(rf"([+-]?)({_INTEGER}?(?:\.\d*)?)")
_RATIO = re.compile(r"([+-]?)\\frac\{([^{}]+)\}\{([^{}]+)\}|([^/]+)/([^/]+)")
_MIXED = re.compile(r"([+-]?)(\d+)(?: (\d+)/(\d+)|\\frac\{(\d+)\}\{(\d+)\})")
_MAX_DIGITS = 200  # longer answers are compared as text: Python refuses to read integers of more than 4300 digits
_MAX_CHARS = 2000  # longer answers are compared as they stand, but for blanks


@dataclass(frozen=True)
class Reading:
    """An answer in one spelling.

    Attributes:
        text: without what follows; blanks only where they part numbers.
        name: the `x` of a leading `x =`; may be empty.
        unit: what follows in words, as per cent or as degrees; may be empty.
    """

    text: str
    name: str = ""
    unit: str = ""


def label_text(label: Any) -> str | None:
    """A label as text, None if it is neither a non-empty string nor an int or finite float."""
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        return None
    if isinstance(label, float):
        return format(Decimal(repr(float(label))), "f") if math.isfinite(label) else None  # 1e-05 is 0.00001
    return str(label).strip() or None


def same(answer: str, label: str) -> bool:
    """Whether both state the same number, or the same expression up to spelling.

    A name or a unit may be missing on one side; two that differ are two answers.
    """
    left, right = read(answer), read(label)
    if _differ(left.name, right.name) or _differ(left.unit, right.unit):
        return False
    one, other = number(left.text), number(right.text)
    if one is None and other is None:
        return left.text.replace(", ", ",") == right.text.replace(", ", ",")
    return one == other


def read(text: str) -> Reading:
    """LaTeX in one spelling, apart from a leading name and a trailing unit."""
    if text.isalnum():
        return Reading(text)
    if len(text) > _MAX_CHARS:
        return Reading("".join(text.split()))
    if "\\" in text:
        for pattern, replacement in _COMMANDS:
            text = pattern.sub(replacement, text)
    text = _BEFORE_COMMA.sub(",", text.translate(_SIGNS)).strip().removesuffix(".").rstrip()
    text = boxed[1] if (boxed := _BOX.fullmatch(text)) else text
    name = _NAME.match(text)
    text = text[name.end() :] if name else text
    unit = _UNIT.search(text)
    if unit and not any(word in (unit[1] or "") for word in _MAGNITUDES):
        words = "percent" if unit[2] else "degree" if unit[3] else "".join(unit[1].split())
        text = text[: unit.start()]
    else:
        words = ""
    text = _BLANKS.sub(lambda found: "" if found[1] is None else f"{found[1]} ", _LOOKS.sub(r"\1", text).strip())
    return Reading(text.removesuffix("."), name[1] if name else "", _singular(words))


def number(text: str) -> Fraction | None:
    r"""The exact value of `12`, `-1,234.50`, `1 234`, `3/4`, `\frac{3}{4}`, `3 1/2`, `3\frac{1}{2}`; else None."""
    if len(text) > _MAX_DIGITS:
        return None
    if match := _MIXED.fullmatch(text):
        above, below = int(match[3] or match[5]), int(match[4] or match[6])
        value = Fraction(match[2]) + Fraction(above, below) if above < below else None
        return -value if value and match[1] == "-" else value
    if match := _RATIO.fullmatch(text):
        sign, top, bottom = match[1] or "", _decimal(match[2] or match[4]), _decimal(match[3] or match[5])
        return None if top is None or not bottom else (-top if sign == "-" else top) / bottom
    return _decimal(text)


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    if not match or not any(char.isdigit() for char in match[2]):
        return None
    return Fraction(match[1] + re.sub("[, ]", "", match[2]))


def _differ(one: str, other: str) -> bool:
    return bool(one and other and one != other)


def _singular(unit: str) -> str:
    return unit[:-1] if len(unit) > 2 and unit.endswith("s") else unit
