"""The driver's state in a checkpoint: JSON, so that reading it runs nothing, and exact, so that a resume is.

Beside JSON's own values it holds those of a data file's rows: bytes, dates and times, decimals, tuples, keys that are
no text. Long lists of numbers are stored as arrays of the narrowest type that holds them without loss.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from slime.errors import SlimeError

_TAG = "$"
"""`{"$": [kind, content]}` stands for a value that JSON does not have."""
_SHORTEST_ARRAY = 16
_INTEGERS, _FLOATS = ("<i1", "<i2", "<i4", "<i8"), ("<f4", "<f8")

_TO_TEXT: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
    float: ("float", repr, float),  # those that are not finite
}


def dumps(state: Mapping[str, Any]) -> bytes:
    """The bytes of a state; SlimeError, which says where, for a value of another type."""
    return json.dumps(_to_json(dict(state), "state"), allow_nan=False, separators=(",", ":")).encode()


def loads(data: bytes) -> dict[str, Any]:
    """The state that `dumps` was given, equal to the bit and to the type; ValueError for other bytes."""
    try:
        state = json.loads(data.decode(), object_hook=_from_json)
    except (TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(state, dict):
        raise ValueError("it is no object")
    return state


def _to_json(value: Any, where: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int) or isinstance(value, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return _packed(value) or [_to_json(each, f"{where}[{index}]") for index, each in enumerate(value)]
    if kind is tuple:
        return {_TAG: ["tuple", _to_json(list(value), where)]}
    if kind is dict:
        return _object(value, where)
    if kind is timedelta:
        return {_TAG: ["timedelta", [value.days, value.seconds, value.microseconds]]}
    if kind not in _TO_TEXT:
        what = f"{where} is of type {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold"
        raise SlimeError(what, todo="Give numbers, text, lists and dicts: state_dict of a plugin, or a row's columns.")
    name, to_text, _ = _TO_TEXT[kind]
    return {_TAG: [name, to_text(value)]}


def _object(value: dict[Any, Any], where: str) -> dict[str, Any]:
    if all(type(key) is str for key in value) and _TAG not in value:
        return {key: _to_json(each, f"{where}.{key}") for key, each in value.items()}
    return {_TAG: ["dict", [[_to_json(key, where), _to_json(each, f"{where}.{key}")] for key, each in value.items()]]}


def _packed(values: list[Any]) -> dict[str, Any] | None:
    """A long list of integers, or of floats, as an array; None for other lists."""
    kinds = set(map(type, values)) if len(values) >= _SHORTEST_ARRAY else set()
    if kinds not in ({int}, {float}):
        return None
    dtypes = _INTEGERS if kinds == {int} else _FLOATS
    try:
        array = np.array(values, dtype=dtypes[-1])
    except OverflowError:  # wider than any: JSON's own integers have no limit
        return None
    with np.errstate(over="ignore"):
        dtype = next((each for each in dtypes if (array.astype(each) == array).all()), dtypes[-1])  # none has NaN
    return {_TAG: [dtype, base64.b64encode(array.astype(dtype).tobytes()).decode()]}


def _from_json(value: dict[str, Any]) -> Any:
    if value.keys() != {_TAG}:
        return value
    kind, content = value[_TAG]
    if kind in _INTEGERS + _FLOATS:
        return np.frombuffer(base64.b64decode(content), dtype=kind).tolist()
    if kind == "tuple":
        return tuple(content)
    if kind == "dict":
        return dict(content)
    if kind == "timedelta":
        return timedelta(*content)
    [from_text] = [from_text for name, _, from_text in _TO_TEXT.values() if name == kind]
    return from_text(content)
