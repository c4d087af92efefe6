"""The driver's state comes back as it was, to the bit and to the type, and reading it runs nothing."""

import json
import math
import random
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from slime import driver_state
from slime.errors import SlimeError


def back(value):
    return driver_state.loads(driver_state.dumps({"value": value}))["value"]


def same(value, other):
    """Equality of types and of floats' bits, which `==` does not ask for."""
    if type(value) is not type(other):
        return False
    if isinstance(value, float):
        return struct.pack("d", value) == struct.pack("d", other)
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


FLOATS = [0.0, -0.0, 0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -1e-45, math.inf, -math.inf, math.nan, 3.4e38, 3.5e38]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**70,
        "text \ud800 \0 \U0001f600",
        *FLOATS,
        [],
        {},
        (),
        [[1, 2], (3, [4.5]), {"a": (True, None)}],
        {"$": 1},
        {"$": ["tuple", [1]]},
        {"$": {"$": ["dict", []]}, "b": 1},
        {1: "a", (2, 3): "b", None: "c", b"x": "d"},
        b"\x00\xff",
        datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        datetime(2026, 1, 2),
        date(2026, 1, 2),
        time(1, 2, 3, 4),
        timedelta(-1, 2, 3),
        Decimal("1.2300"),
        UUID(int=1),
    ],
)
def test_values_come_back(value):
    assert same(back(value), value)


@pytest.mark.parametrize(
    "values",
    [
        [0, 1] * 50,
        [-128, 127] * 50,
        [-129, 128] * 50,
        [2**31 - 1, -(2**31)] * 50,
        [2**31] * 50,
        [2**63 - 1, -(2**63)] * 50,
        [2**63] * 50,
        [True, False] * 50,
        [1, 2.0] * 50,
        FLOATS * 5,
        [struct.unpack("f", struct.pack("f", math.log(number)))[0] for number in range(1, 100)],
        [math.log(number) for number in range(1, 100)],
        [-0.0] * 50,
    ],
    ids=str,
)
def test_long_lists_of_numbers_come_back(values):
    assert same(back(values), values)


def test_random_floats_come_back_to_the_bit():
    pick = random.Random(5)
    bits = [pick.getrandbits(64) for _ in range(5000)]
    values = [value for (value,) in struct.iter_unpack("d", struct.pack("5000Q", *bits)) if not math.isnan(value)]
    assert same(back(values), values)
    assert all(same(back(value), value) for value in values[:500])


def test_tokens_and_logprobs_take_few_bytes():
    """Four bytes a token and a log-prob, which engines give in single precision, one a mask; a third more as text."""
    tokens, mask = [100_000 + number for number in range(10_000)], [1] * 10_000
    logprobs = [struct.unpack("f", struct.pack("f", -number / 7))[0] for number in range(10_000)]
    assert len(driver_state.dumps({"all": [tokens, logprobs, mask]})) < 10_000 * (4 + 4 + 1) * 4 / 3 + 200


def test_it_is_json():
    json.loads(driver_state.dumps({"a": [*FLOATS, b"x"]}), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, print])
def test_what_it_cannot_hold_is_named_with_its_place(value):
    with pytest.raises(SlimeError, match=r"state\.buffer\.groups\[1\] is of type "):
        driver_state.dumps({"buffer": {"groups": [0, value]}})
