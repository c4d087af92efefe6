"""JSON values of clients and models, odd ones too: numbers of any size, halves of characters, and deep nesting."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any

import orjson

from slime_agents.conversations.spelled import whole

MAX_DEPTH = 200
"""Objects and lists in one another. Templates and clients go down by a function's call or two for each."""
_MAX_DIGITS = 4000
"""Limit of an integer: Python reads few more, and no client either."""
_HALVES = re.compile("\\\\u[dD][89a-fA-F]")  # may be half of a character


def loads(body: bytes) -> Any:
    """The value of a JSON text. Integers keep all their digits; half of a character becomes U+FFFD.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    text = body.decode()
    value = json.loads(text, parse_int=lambda digits: (int if len(digits) <= _MAX_DIGITS else float)(digits))
    return whole(value) if _HALVES.search(text) else value


def dumps(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON that every client reads: what is no finite number is null, as orjson has it."""
    try:
        return orjson.dumps(value, default=default)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits, half of a character, or more than 254 levels
        return json.dumps(_each(value, _finite), default=default).encode()


def is_shallow(value: Any) -> bool:
    """A value of at most `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for each in level if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]  # fmt: skip
        if not level:
            return True
    return False


def comparable(value: Any) -> Any:
    """A form that is equal for values that clients make of one another: JavaScript has doubles alone."""
    return _each(value, _double)


def digest(value: Any, *, sort_keys: bool = True) -> bytes:
    """A short key, equal for equal values, whatever the order of their keys; without `sort_keys` faster, and by their
    order too."""
    try:
        written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except orjson.JSONEncodeError:
        written = json.dumps(value, sort_keys=sort_keys).encode()
    return hashlib.blake2b(written, digest_size=16).digest()


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {change(name): _each(inner, change) for name, inner in value.items()}
    return [_each(inner, change) for inner in value] if isinstance(value, list) else change(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _double(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        return _finite(float(value) + 0.0)  # a sum, because it makes 0.0 of -0.0
    except OverflowError:
        return None
