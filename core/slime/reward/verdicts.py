"""Verdicts of plugins' code: checked, and passed from a worker to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guarded_workers.wire import one_line, text
from slime.types import Verdict, VerdictKind

MAX_VALUE, MAX_PART = 1e12, 1e30
"""Beyond these a number is refused. A larger value could take the gradient out of the range of float32, in which its
squares are summed; a part is a metric alone, a time in nanoseconds for instance."""


def checked(answer: Any, what: str) -> Verdict:
    """`answer`, which `what` gave, as a verdict of plain floats; an ERROR verdict where it is anything else."""
    if not isinstance(answer, Verdict) or not isinstance(answer.kind, VerdictKind):
        return Verdict.error(f"{what} returned {answer!r:.80}, not a Verdict; wrap a number in Verdict.of(...)")
    parts = [(name, number, MAX_PART) for name, number in answer.parts.items()]
    numbers = [("value", answer.value, MAX_VALUE), *parts] if answer.value is not None else parts
    if wrong := [f"{name}={number!r:.80}" for name, number, most in numbers if not _within(number, most)]:
        limits = f"{MAX_VALUE:g} in size, parts {MAX_PART:g}"
        return Verdict.error(f"{what} returned a Verdict with {', '.join(wrong)}; numbers are finite, at most {limits}")
    value = None if answer.value is None else float(answer.value)
    floats = {str(name): float(number) for name, number, _ in parts}
    return Verdict(answer.kind, value, one_line(answer.reason), floats)


def fields(verdict: Verdict) -> dict[str, Any]:
    """A checked verdict as JSON."""
    return dict(vars(verdict))


def verdict(kind: str, value: Any, reason: Any, parts: Mapping[str, Any]) -> Verdict:
    """A verdict of its fields, each of which is checked; raises one of `wire.MALFORMED`."""
    named = VerdictKind(kind)
    if (value is None) == (named is VerdictKind.VALUE):
        raise ValueError("only a VALUE verdict carries a value")
    numbers = {text(name): _number(part, MAX_PART) for name, part in parts.items()}
    return Verdict(named, None if value is None else _number(value, MAX_VALUE), one_line(text(reason)), numbers)


def _within(number: Any, most: float) -> bool:
    return not isinstance(number, str) and bool(abs(number) <= most)


def _number(value: Any, most: float) -> float:
    if type(value) not in (int, float) or not abs(value) <= most:
        raise ValueError("not a number of that size")
    return float(value)
