"""Values of rows as JSON: every reader takes it, and nothing is lost."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import numpy as np
import orjson
import pytest

from slime.as_json import to_json


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"a": [1, 2.5, None, True, "ä\u2028"]}, {"a": [1, 2.5, None, True, "ä\u2028"]}),
        (b"\xff\x00", "/wA="),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(1, 2), "01:02:00"),
        (timedelta(days=1, microseconds=1), "1 day, 0:00:00.000001"),
        (Decimal("1.2300"), "1.2300"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"a": [math.nan, math.inf, {"b": -math.inf}]}, {"a": ["NaN", "Infinity", {"b": "-Infinity"}]}),
        ({"a": math.nan, "b": b"x", "c": (Decimal(1), date.max)}, {"a": "NaN", "b": "eA==", "c": ["1", "9999-12-31"]}),
        ({1: "a", (2, 3): "b", None: "c"}, {"1": "a", "[2, 3]": "b", "null": "c"}),
        ({b"x": "d", math.nan: "e"}, {"eA==": "d", "NaN": "e"}),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array([math.nan]), ["NaN"]),
        (2**63, 2**63),
    ],
    ids=repr,
)  # fmt: skip
def test_what_json_does_not_have_is_text(value, read):
    assert orjson.loads(to_json(value)) == read  # orjson refuses what JSON does not allow
    assert orjson.loads(to_json(value, ensure_ascii=False)) == read
    assert orjson.loads(to_json({"in": [value]})) == {"in": [read]}


def test_integers_have_no_limit_and_the_depth_of_rows_is_fine():
    assert json.loads(to_json(2**4000)) == 2**4000
    deep = math.nan
    for _ in range(100):
        deep = [deep]
    assert to_json(deep) == "[" * 100 + '"NaN"' + "]" * 100
