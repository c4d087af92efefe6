"""Compares what a program printed or returned with what a test wants, out of the program's reach."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

CLOSE = 1e-6
"""Distance of a number with a decimal point from the wanted one at most, as a share of it: six digits."""
_SLACK = 1 + 1e-6
_WHOLE = float(2**53)
_MOST_DEEP = 50
_SHORT, _LONGER = 1000, 8
"""The longest text of a value that is read: this many characters, and this many for each of the wanted value's."""
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9]\d*)(?:\.(\d+)|\.)?|\.(\d+))(?:[eE][-+]\d{1,3})?")
_TOKEN = re.compile(r"([\[({]*)([^\s\[\](){},;:%]+)([\])},;:%]*)")
_PIECE = re.compile(r"\s+|\S+")
_MOST_DIGITS = 400
"""Characters of a number that is compared by its value."""


def same_text(given: str, wanted: str) -> bool:
    """Compare two outputs, less blanks at the ends of lines and line ends at the end of all.

    Numbers with a decimal point are equal to six digits; all else is the same to the letter.
    """
    lines, others = _lines(given), _lines(wanted)
    return len(lines) == len(others) and all(map(_same_line, lines, others))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same_line(given: str, wanted: str) -> bool:
    if given == wanted:
        return True
    tokens, others = given.split(), wanted.split()
    if not others or not all(map(_NUMBER.fullmatch, others)):  # of numbers alone the spaces say nothing
        tokens, others = _PIECE.findall(given), _PIECE.findall(wanted)
    return len(tokens) == len(others) and all(map(_same_token, tokens, others))


def _same_token(given: str, wanted: str) -> bool:
    if given == wanted:
        return True
    both = _TOKEN.fullmatch(given), _TOKEN.fullmatch(wanted)
    if not both[0] or not both[1] or both[0][1] != both[1][1] or both[0][3] != both[1][3]:
        return False
    return _same_number(both[0][2], both[1][2])


def _same_number(given: str, wanted: str) -> bool:
    if len(given) > _MOST_DIGITS or len(wanted) > _MOST_DIGITS:
        return False
    number, other = _NUMBER.fullmatch(given), _NUMBER.fullmatch(wanted)
    is_whole, wants_whole = (text.lstrip("+-").isdigit() for text in (given, wanted))
    if not number or not other or (is_whole and wants_whole):
        return False
    if is_whole or wants_whole:
        return Fraction(given) == Fraction(wanted) or (is_whole and close(float(given), float(wanted)))
    return close(float(given), float(wanted), len(other[1] or other[2] or "") if "e" not in wanted.lower() else 0)


def close(given: float, wanted: float, decimals: int = 0) -> bool:
    """A number equals the wanted one to six digits, or rounds to it where that has six decimals or more. Whole numbers
    are equal or not."""
    if given == wanted:
        return True
    if not (math.isfinite(given) and math.isfinite(wanted)):
        return False
    if abs(wanted) < _WHOLE and given == int(given) and wanted == int(wanted):
        return False
    error = abs(given - wanted)
    if error <= CLOSE * max(abs(given), abs(wanted)) * _SLACK:
        return True
    if 6 <= decimals <= 15 and error <= 0.5 * 10.0**-decimals * _SLACK and given != 0:
        return True
    return abs(wanted) >= 0.01 and error <= CLOSE


def same_value(said: str, wanted: Any, *, of_json: bool, within: float = 0.0) -> bool:
    """Compare the text of a value with the wanted one.

    Args:
        of_json: the wanted value was written as JSON, which has no tuples, and no keys but texts.
        within: how far numbers may be apart.
    """
    if len(said) > _SHORT + _LONGER * len(repr(wanted)):  # to read it may take long
        return False
    try:
        return _equal(ast.literal_eval(said), wanted, of_json, within)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return False


def _equal(given: Any, wanted: Any, of_json: bool, within: float, depth: int = 0) -> bool:
    """Equality as Python has it (`True == 1`), but for floats, and for what JSON does not have."""
    if depth > _MOST_DEEP:
        return False
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        if isinstance(wanted, int) or isinstance(given, bool):
            return given == wanted or bool(within and abs(given - wanted) <= within)
        return close(float(given), wanted) or abs(given - wanted) <= within
    if isinstance(given, list | tuple) and isinstance(wanted, list | tuple):
        if not of_json and isinstance(given, list) != isinstance(wanted, list):
            return False
        if len(given) != len(wanted):
            return False
        return all(_equal(one, other, of_json, within, depth + 1) for one, other in zip(given, wanted, strict=True))
    if isinstance(given, dict) and isinstance(wanted, dict):
        keyed = _as_json(given) if of_json else given
        if len(keyed) != len(given) or keyed.keys() != wanted.keys():
            return False
        return all(_equal(keyed[key], wanted[key], of_json, within, depth + 1) for key in keyed)
    return bool(type(given) is type(wanted) and given == wanted)


def _as_json(given: Mapping[Any, Any]) -> dict[Any, Any]:
    names = {True: "true", False: "false", None: "null"}
    return {
        names[key] if key is None or isinstance(key, bool) else str(key) if isinstance(key, int | float) else key: value
        for key, value in given.items()
    }
