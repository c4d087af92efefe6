"""Decides whether two answers are the same: by their values where both have one, else by their parts or their spelling.

Numbers, fractions, powers, roots and polynomials are compared by `formulas.form`; lists, tuples, sets, intervals,
relations and matrices part by part. All others are the same if they have one spelling.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from slime_rewards.math.families import INTEGERS, shifted, split_parameter, with_parameter
from slime_rewards.math.forms import Form, is_settled, rational, scaled
from slime_rewards.math.formulas import form, tree
from slime_rewards.math.spelling import choice, labelled_choice, phrase, said, spelled, unwrapped
from slime_rewards.math.structure import (
    Parts,
    as_matrix,
    as_relation,
    condition,
    determinant,
    is_name,
    parts_of,
    split_list,
    split_name,
    without_braces,
)
from slime_rewards.math.units import scale, split_unit, sum_of_units
from slime_rewards.math.values import agree, remainders_agree

# What most answers are; no other rule is needed for two of them.
_PLAIN = re.compile(
    r"\$?([+-]?)(?:(\d{1,3}(?:,\d{3})+|\d{1,200})(?:\.(\d{0,200})|/(\d{1,200}))?"
    r"|\\[dt]?frac\{(\d{1,200})\}\{(\d{1,200})\})\$?"
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
# Blanks between digits tell two numbers from one, and after a comma a list from thousands.
_BLANKS = re.compile(r"(?<=\d)(,?)\s+(?=\d)|\s+")
_RATIO = re.compile(r"\s*(\d+)\s*:\s*(?!\d\d\s*$)(\d+)\s*")
_BRACED = re.compile(r"(?<=[\^_])\{(\w)\}")
_WORD = re.compile(r"[a-zA-Z]{2,}")
_OF_ANY_CASE = {"yes", "no", "true", "false", "none"}
_MAX_CHARS = 2000  # longer answers are compared as they stand, but for blanks
_MAX_DEPTH = 8


@dataclass(frozen=True)
class Reading:
    """An answer in one spelling.

    Attributes:
        text: without what follows.
        name: the `x` of a leading `x =`; may be empty.
        unit: what follows in words, as per cent or as degrees; may be empty.
        items: where the answer is a list, each of its items.
        parameter: the letter of `families` that runs through a set of numbers; may be empty.
    """

    text: str
    name: str = ""
    unit: str = ""
    items: tuple[Reading, ...] = ()
    parameter: str = ""


def same(answer: str, label: str) -> bool:
    """Compare what an answer and a label state: one value, or one expression up to spelling.

    A name or a unit may be missing on one side; two that differ are two answers.
    """
    if answer == label:
        return True
    if max(len(answer), len(label)) > _MAX_CHARS:
        return "".join(answer.split()) == "".join(label.split())
    one, other = _PLAIN.fullmatch(answer.strip()), _PLAIN.fullmatch(label.strip())
    if one and other:
        (above, below), (above_of_label, below_of_label) = _ratio(one), _ratio(other)
        return above * below_of_label == above_of_label * below and bool(below and below_of_label)
    return _same(read(answer), read(label), _MAX_DEPTH) or _same_choice(answer, label)


def _ratio(found: re.Match[str]) -> tuple[int, int]:
    sign, whole, decimals, divisor, above, below = found.groups()
    value = int(above or whole.replace(",", "") + (decimals or ""))
    return -value if sign == "-" else value, int(below or divisor or 10 ** len(decimals or ""))


def number(text: str) -> Fraction | None:
    r"""The exact value of a number in any spelling, such as `-1,234.5`, `3 1/2`, `\frac{3}{4}`, `2^{10}`; else None."""
    return rational(form(spelled(text)))


@functools.lru_cache(maxsize=1024)  # a label is compared with every response of its prompt
def read(text: str) -> Reading:
    """LaTeX in one spelling, apart from a leading name and a trailing unit."""
    text = without_braces(unwrapped(said(spelled(text))))
    text, parameter = split_parameter(text)
    found = _read(text)
    if not parameter:
        return found
    items = tuple(replace(item, parameter=parameter) for item in found.items)
    return replace(found, items=items, parameter=parameter)


def _same_choice(answer: str, label: str) -> bool:
    """Compare the letters of two choices: `B` is enough for `(B) 12`."""
    one, other = choice(spelled(answer)), choice(spelled(label))
    return bool(one or other) and (one or labelled_choice(spelled(answer))) == (
        other or labelled_choice(spelled(label))
    )


def _read(text: str) -> Reading:
    text = unwrapped(text.strip())
    text = phrase(_TEXT.sub(r"\1", text).strip() if text.startswith("\\text") else text)
    if quantity := sum_of_units(text):
        return Reading(quantity[0], "", quantity[1])
    name, text = split_name(condition(_result(text)))
    if "\\begin" in text and (formula := determinant(text)):
        text = formula
    items = split_list(text)
    if len(items) > 1:
        if items[0].count("≠") == 1 and not any("≠" in item for item in items[1:]):  # x ≠ 1, 2
            items = [items[0], *(f"{items[0].split('≠')[0]}≠{item}" for item in items[1:])]
        return Reading(text, name, items=tuple(_read(item) for item in items))
    text, unit = split_unit(text)
    text = without_braces(_TEXT.sub(r"\1", text).strip())
    parts = parts_of(text)
    return Reading(text, name or (parts.name if parts else ""), unit)


def _result(text: str) -> str:
    """Result of a right sum: 34 of `17 * 2 = 34`."""
    exact, about, near = text.partition("≈")
    if about:
        text = f"{exact}={near}" if is_name(exact) else exact if exact.strip() else near
    sides = text.split("=")
    if len(sides) == 1:
        return text
    is_called = len(sides) > 2 and form(sides[0]) != form(sides[1])  # m+n = 25+4 = 29
    forms = {form(side) for side in (sides[1:] if is_called else sides)}
    if len(forms) > 1 or None in forms:
        return text
    return f"{sides[0]}={sides[-1]}" if is_called else sides[-1]


def _same(left: Reading, right: Reading, depth: int) -> bool:
    """`right` is the label: what a sum such as `a+b =` is called may be missing there."""
    if not depth:
        return False
    if _names_differ(left.name, right.name):
        return not (left.items or right.items) and _equations_agree(left, right)
    if left.parameter != right.parameter:
        left, right = _told(left, right), _told(right, left)
        if left.parameter != right.parameter:
            return False
    if left.items or right.items:
        return _lists(left, right, depth)
    if left.parameter == INTEGERS and parts_of(left.text) is None and shifted(left.text, right.text):
        return left.unit == right.unit
    if left.unit == right.unit or not (left.unit and right.unit):
        if _equal(left.text, right.text, depth) or _equations_agree(left, right):
            return True
        if {left.unit, right.unit} == {"percent", ""}:
            one, other = (rational(form(f"({part.text})/100" if part.unit else part.text)) for part in (left, right))
            return one is not None and one == other
        return False
    sizes = [(scale(side.unit), rational(form(side.text))) for side in (left, right)]
    amounts = [(size[0] * value, size[1]) for size, value in sizes if size and value is not None]
    return len(amounts) == 2 and amounts[0] == amounts[1]


def _told(one: Reading, other: Reading) -> Reading:
    """An answer that leaves out that its letter is an integer, which the other says."""
    if one.parameter or other.parameter != INTEGERS or one.items:
        return one
    text = with_parameter(one.text, INTEGERS)
    return one if text is None else replace(one, text=text, parameter=INTEGERS)


def _equations_agree(left: Reading, right: Reading) -> bool:
    """Compare equations up to the sides of their terms and a factor: `2x+4y=6`, `x+2y=3`."""
    forms = [_equation(side) for side in (left, right)]
    return None not in forms and forms[0] == forms[1]


def _equation(reading: Reading) -> Form | None:
    if reading.name:
        sides = [reading.name, reading.text]
    else:
        sides = reading.text.split("=")
    found = form(f"({sides[0]})-({sides[1]})") if len(sides) == 2 and not reading.unit else None
    return scaled(found) if found and rational(found) is None else None


def _names_differ(answer: str, label: str) -> bool:
    if not answer or not label:
        is_sum = any(sign in label for sign in "+-*") and "^" not in label
        return bool(label) and not answer and is_sum
    return not (_compact(answer) == _compact(label) or _forms_agree(answer, label))


def _equal(left: str, right: str, depth: int) -> bool:
    if _compact(left) == _compact(right):
        return True
    parts, others = parts_of(left), parts_of(right)
    if parts and others:
        if {parts.kind, others.kind} == {"set", "brackets"} and depth == _MAX_DEPTH:
            return _is_alone(parts, right, depth) or _is_alone(others, left, depth)
        return _parts_agree(parts, others, depth)
    if parts or others:
        # Within a set, a set of one is another thing than its member.
        return depth == _MAX_DEPTH and (_is_alone(parts, right, depth) or _is_alone(others, left, depth))
    return _forms_agree(_quotient(left), _quotient(right))


def _quotient(text: str) -> str:
    """A ratio of two as their quotient, but for what may be a time of day."""
    found = _RATIO.fullmatch(text)
    return f"({found[1]})/({found[2]})" if found else text


def _is_alone(parts: Parts | None, value: str, depth: int) -> bool:
    """A set of one is its only member."""
    is_one = parts and parts.kind == "set" and len(parts.items) == 1 and value != "∅"
    return bool(is_one) and _items(parts, [value], depth)


def _items(parts: Parts | None, others: Sequence[str], depth: int) -> bool:
    assert parts
    return all(_same(_read(one), _read(other), depth - 1) for one, other in zip(parts.items, others, strict=True))


def _parts_agree(left: Parts, right: Parts, depth: int) -> bool:
    if {left.kind, right.kind} == {"relation", "brackets"}:
        left, right = as_relation(left), as_relation(right)
    if {left.kind, right.kind} == {"matrix", "brackets"}:
        left, right = as_matrix(left), as_matrix(right)
    if (left.kind, left.brackets, len(left.items)) != (right.kind, right.brackets, len(right.items)):
        return False
    if left.kind == "relation" and left.brackets in ("<", "≤"):
        return _differences_agree(left.items, right.items) or _items(left, right.items, depth)
    if left.kind not in ("set", "union") and left.brackets not in ("≠", "="):
        return _items(left, right.items, depth)
    return _matched([_read(item) for item in left.items], [_read(item) for item in right.items], depth)


def _differences_agree(left: Sequence[str], right: Sequence[str]) -> bool:
    """Compare inequalities up to terms on both sides and a positive factor."""
    forms = [form(f"({small})-({large})") for small, large in (left, right)]
    if not forms[0] or not forms[1] or scaled(forms[0]) != scaled(forms[1]):
        return False
    one, other = dict(forms[0]), dict(forms[1])
    return all(one[monomial] * other[monomial] > 0 for monomial in one)


def _lists(left: Reading, right: Reading, depth: int) -> bool:
    """Lists without brackets, and sets, in any order. Where one side alone says which is which, as in `x=3, y=4`, the
    other has them in the order of their names."""
    is_named = [_is_named(left, right), _is_named(right, left)]
    one, other = (_listed(side, can_be_tuple=any(is_named)) for side in (left, right))
    if len(one) != len(other):
        return False
    if is_named[0] != is_named[1]:
        one, other = (sorted(items, key=lambda item: item.name) for items in (one, other))
        return all(_same(a, b, depth - 1) for a, b in zip(one, other, strict=True))
    return _matched(one, other, depth)


def _is_named(one: Reading, other: Reading) -> bool:
    """Names that say which is which: of a set, x_1 and x_2 may be either."""
    names = {item.name for item in one.items if item.name}
    is_numbered = all("_" in name for name in names) and len({name[0] for name in names}) == 1
    return len(names) > 1 and not (is_numbered and other.text.startswith("⦃"))


def _listed(reading: Reading, *, can_be_tuple: bool) -> Sequence[Reading]:
    if reading.items:
        return reading.items
    parts = parts_of(reading.text)
    is_list = parts and (parts.kind in ("set", "union") or (can_be_tuple and parts.brackets == "()"))
    return [_read(item) for item in parts.items] if parts and is_list else [reading]


def _matched(left: Sequence[Reading], right: Sequence[Reading], depth: int) -> bool:
    """Pair each with a partner of its own."""
    free = list(right)
    for one in left:
        partner = next((index for index, other in enumerate(free) if _same(one, other, depth - 1)), None)
        if partner is None:
            return False
        del free[partner]
    return not free


def _forms_agree(left: str, right: str) -> bool:
    one, other = form(left), form(right)
    if one is not None and one == other:
        return True
    if one is not None and other is not None and is_settled(one) and is_settled(other):
        return False
    left_tree, right_tree = tree(left), tree(right)
    if left_tree is None or right_tree is None:
        return False
    return remainders_agree(left_tree, right_tree) or agree(left_tree, right_tree)


def _compact(text: str) -> str:
    """A text without blanks and braces that change nothing; words begin with a small letter."""
    text = _BLANKS.sub(lambda found: "" if found[1] is None else f"{found[1]} ", text.strip())
    if text.isascii() and text.isdigit():
        return text
    text = _BRACED.sub(r"\1", text.replace(", ", ","))
    return _WORD.sub(lambda word: _small(word[0]), text)


def _small(word: str) -> str:
    if word.lower() in _OF_ANY_CASE or (len(word) > 2 and word[1:].islower()):
        return word.lower()
    return word
