r"""Decides whether two answers are the same: exactly as numbers where both are, else as LaTeX with one spelling.

No algebra: `2\sqrt{3}` and `\sqrt{12}` differ here. Labels of the usual math sets are numbers or short expressions.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

# In this order. What only changes the look of a formula, or names a unit, goes; several spellings become one.
_SPELLING = [
    (re.compile(r"\\left|\\right|\\[!,;: ]|\\quad|~|\\?\$"), ""),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}"), r"\\text{\1}"),
    (re.compile(r"(?<=[^\s])\s*\\text\{[^{}]*\}$"), ""),
    (re.compile(r"\\text\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\?%|\^\{\\circ\}|\^\\circ"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"−"), "-"),
    (re.compile(r"\\frac([0-9])([0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt([0-9a-zA-Z])"), r"\\sqrt{\1}"),
    (re.compile(r"^\s*[a-zA-Z]\s*(?:=|\\in(?![a-zA-Z]))"), ""),
    (re.compile(r"\.$|\s"), ""),
]
_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = re.compile(rf"([+-]?)({_INTEGER}?(?:\.\d*)?)")
_RATIO = re.compile(r"([+-]?)\\frac\{([^{}]+)\}\{([^{}]+)\}|([^/]+)/([^/]+)")
_MAX_DIGITS = 200  # longer answers are compared as text: Python refuses to read integers of more than 4300 digits


def label_text(label: Any) -> str | None:
    """A label as text, None if it is neither a non-empty string nor an int or float."""
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        return None
    return str(label).strip() or None


def same(answer: str, label: str) -> bool:
    """Whether both state the same number, or the same expression up to spelling."""
    left, right = normalised(answer), normalised(label)
    numbers = number(left), number(right)
    return left == right if None in numbers else numbers[0] == numbers[1]


def normalised(text: str) -> str:
    """LaTeX in one spelling: no blanks, no layout commands, no units, no leading `x =`."""
    text = text.strip()
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    return text


def number(text: str) -> Fraction | None:
    r"""The exact value of `12`, `-1,234.50`, `3/4` or `\frac{3}{4}`; None if `text` is no such number."""
    if len(text) > _MAX_DIGITS:
        return None
    if match := _RATIO.fullmatch(text):
        sign, above, below = match[1] or "", match[2] or match[4], match[3] or match[5]
        top, bottom = _decimal(above), _decimal(below)
        return None if top is None or not bottom else (-top if sign == "-" else top) / bottom
    return _decimal(text)


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    if not match or not any(char.isdigit() for char in match[2]):
        return None
    return Fraction(match[1] + match[2].replace(",", ""))
