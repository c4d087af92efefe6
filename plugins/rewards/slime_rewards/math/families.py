r"""Answers with a parameter that runs through the integers or the natural numbers: `\frac{\pi}{2} + k\pi, k \in Z`.

The parameter gets one letter, whatever it is called. Of two that run through all integers, a shift and a turn of the
parameter change nothing: `3k+1` and `3n-2`.
"""

from __future__ import annotations

import re
from fractions import Fraction

from slime_rewards.math.forms import Form, Sum, added, negative
from slime_rewards.math.formulas import form

INTEGERS, NATURALS = r"\hbar ", r"\ell "
"""The letters of parameters: no answer has them otherwise."""
_SETS = {"Z": INTEGERS, "N": NATURALS}
_DOMAIN = (
    r"(?:\\(?:mathbb|Bbb|text|mathbf)\s*\{?\s*(?P<set>[ZN])\s*\}?|\\(?P<short>Z|N)+\b|(?P<sign>[ℤℕ])"
    r"|(?P<plain>[ZN])(?![a-zA-Z]))"
)
_SAID = r"(?:\\text\s*\{[^{}]{0,40}\}|for|any|all|each|every|with|where|and|∀|\\forall)"
_TEXT = r"(?:\\text\s*\{\s*)?"
_IN = rf"(?P<letter>[a-zA-Z])\s*∈\s*{_DOMAIN}"
_WORDS = r"is\s+(?:an\s+|any\s+)?integer|an\s+integer|are\s+integers|integer"
_PARAMETER = re.compile(
    rf"[\s,;]*\(?\s*(?:{_SAID}\s*)*(?:{_IN}"
    rf"|(?P<called>[a-zA-Z])\s*{_TEXT}\s*(?:{_WORDS})\s*\}}?"
    rf"|{_TEXT}(?:for\s+)?(?:any|all|every|each)\s+integers?\s*\}}?\s*(?P<named>[a-zA-Z]))\s*\)?[\s.]*"
)
_MARKS = ("∈", "integer")
_BUILT = re.compile(r"\s*⦃(.*?)[|:](.*)⦄\s*", re.DOTALL)
_USUAL = "klmn"
_MAX_CHARS = 400


def split_parameter(text: str) -> tuple[str, str]:
    """`text` with its parameter under one letter, without its domain; and that letter, empty if it has none."""
    if not any(mark in text for mark in _MARKS) or len(text) > _MAX_CHARS:
        return text, ""
    inner = text
    if built := _BUILT.fullmatch(text):  # {x | x = k, k is an integer}
        head, condition = built[1], built[2]
        name = head.split("∈")[0].strip()
        inner = condition if _PARAMETER.sub("", condition).strip() else f"{name}, {condition}"
    found = next((each for each in _PARAMETER.finditer(inner) if _letter(each)), None)
    if not found:
        return text, ""
    letter = _letter(found)
    kind = found["set"] or found["short"] or found["plain"] or {"ℕ": "N"}.get(found["sign"] or "", "Z")
    value = _PARAMETER.sub(lambda each: "" if _letter(each) == letter else each[0], inner).strip(" ,;")
    renamed, times = _named(letter).subn(lambda _: _SETS[kind], value)
    if not times or not value or "∈" in renamed.partition("=")[2]:
        return text, ""
    return renamed, _SETS[kind]


def with_parameter(text: str, letter: str) -> str | None:
    """A text that does not say what runs through the integers, with its only usual letter of one as the parameter."""
    free = [each for each in _USUAL if _named(each).search(text)]
    return _named(free[0]).sub(lambda _: letter, text) if len(free) == 1 else None


def _letter(found: re.Match[str]) -> str:
    return found["letter"] or found["called"] or found["named"]


def _named(letter: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])")


def shifted(one: str, other: str) -> bool:
    """Compare the values, over all integers, of two formulas that are linear in the parameter."""
    left, right = form(one), form(other)
    if left is None or right is None:
        return False
    (step, start), (other_step, other_start) = _parted(left), _parted(right)
    if not step or (step != other_step and step != negative(other_step)):
        return False
    difference = added(start, negative(other_start))
    monomial = next(iter(step))
    count = difference.get(monomial, Fraction(0)) / step[monomial]
    return count.denominator == 1 and difference == {key: count * value for key, value in step.items() if count}


def _parted(of: Form) -> tuple[Sum, Sum]:
    """Factor of the parameter, and the rest; both empty if it is not linear."""
    name = INTEGERS.strip()
    step: Sum = {}
    start: Sum = {}
    for monomial, value in of:
        atoms = dict(monomial)
        power = atoms.pop(name, Fraction(0))
        if power not in (0, 1) or name in repr(sorted(map(repr, atoms))):
            return {}, {}
        (step if power else start)[frozenset(atoms.items())] = value
    return step, start
