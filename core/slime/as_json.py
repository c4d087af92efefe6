"""Rows as JSON, for readers without Python: servers and people."""

from __future__ import annotations

import base64
import json
import math
from datetime import date, time
from typing import Any


def to_json(value: Any, *, ensure_ascii: bool = True) -> str:
    """One line that every reader takes. Values that JSON does not have are text: bytes in base64, dates and times as in
    ISO 8601, "NaN", "Infinity", "-Infinity", and all else as `str` writes it. Arrays of numpy are lists."""
    try:
        return json.dumps(value, default=_standing_for, allow_nan=False, ensure_ascii=ensure_ascii)
    except (TypeError, ValueError):  # a key that is no text, or a number that is not finite
        return json.dumps(_plain(value), allow_nan=False, ensure_ascii=ensure_ascii)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(float(value))
    return value if value is None or isinstance(value, str | int | float) else _plain(_standing_for(value))


def _key(value: Any) -> str:
    found = _plain(value)
    return found if isinstance(found, str) else json.dumps(found)


def _standing_for(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    return value.tolist() if hasattr(value, "tolist") else str(value)
