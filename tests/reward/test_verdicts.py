"""Which verdicts may be learned from, and what is taken for one."""

from __future__ import annotations

from typing import Any

import pytest

from guarded_workers.wire import MALFORMED
from slime.algo.advantages import group_advantages
from slime.reward.verdicts import MAX_VALUE, checked, fields, verdict
from slime.types import Verdict


def read(**changes: Any) -> Verdict:
    return verdict(**{"kind": "value", "value": 0.5, "reason": "", "parts": {"format": 1.0}, **changes})


@pytest.mark.parametrize("sent", [Verdict.of(0.1 + 0.2, format=1 / 3), Verdict.invalid("row 3: \u00e9")])
def test_a_verdict_comes_back_as_it_was(sent: Verdict) -> None:
    assert verdict(**fields(sent)) == sent


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "perhaps"},
        {"kind": []},
        {"value": None},
        {"value": "1"},
        {"value": True},
        {"value": float("nan")},
        {"value": float("inf")},
        {"value": 10**400},
        {"value": 1e13},
        {"parts": {"a": -1e31}},
        {"kind": "error"},
        {"reason": 5},
        {"parts": None},
        {"parts": [1]},
        {"parts": {"a": "b"}},
        {"parts": {"a": None}},
        {"extra": 1},
    ],
    ids=str,
)
def test_anything_else_is_no_verdict(wrong: dict[str, Any]) -> None:
    with pytest.raises(MALFORMED):
        read(**wrong)


def test_a_lone_surrogate_does_not_come_through() -> None:
    answer = read(kind="invalid", value=None, reason="a\ud800b", parts={"c\udfff": 1})
    assert (answer.reason, answer.parts) == ("a?b", {"c?": 1.0})


@pytest.mark.parametrize("verdict", [Verdict.of(0.5, format=1.0), Verdict.invalid("why"), Verdict.error("how")])
def test_a_good_verdict_passes_unchanged(verdict: Verdict) -> None:
    assert checked(verdict, "score") == verdict


def test_numbers_of_other_types_become_floats() -> None:
    numpy = pytest.importorskip("numpy")
    verdict = checked(Verdict.of(numpy.float32(0.5), format=numpy.int64(1)), "score")
    assert (type(verdict.value), type(verdict.parts["format"])) == (float, float)


def test_the_largest_numbers_pass_and_larger_ones_are_named() -> None:
    assert checked(Verdict.of(-1e12, nanoseconds=1.7e18, most=1e30), "score").value == -1e12
    refused = checked(Verdict.of(1.0, good=1.0, wild=-1e31), "score").reason
    assert "with wild=-1e+31; numbers are finite, at most 1e+12 in size, parts 1e+30" in refused


def test_advantages_and_their_squares_fit_into_float32() -> None:
    """The largest values there are, with and without the division by their deviation."""
    for divide in (False, True):
        advantages = group_advantages([MAX_VALUE, -MAX_VALUE, MAX_VALUE], divide)
        assert all(advantage**2 < 1e26 for advantage in advantages)
