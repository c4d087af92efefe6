"""The parts of an answer: lists, names before an equals sign, brackets, intervals, relations, matrices.

The kind of brackets around a matrix changes nothing, but for bars, which make it a determinant.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from slime_rewards.math.forms import ONE, rational
from slime_rewards.math.formulas import form

_OPEN, _CLOSE = "([{⦃⟨", ")]}⦄⟩"
_AND = re.compile(r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z]))\s*")
_BOTH_OF = re.compile(r"\\text\s*\{\s*and\s*\}|(?<![a-zA-Z])and(?![a-zA-Z])")
_BOTH = re.compile(r"[<>≤≥].*\band\b.*[<>≤≥]", re.DOTALL)  # x > 1 and x < 3 is one range, not two
_THOUSANDS = re.compile(r"[-+\s\\$€£]*\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])[^,]*")
_GREEK = r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|sigma|angle\s*[A-Z]*)"
_LETTER = rf"(?:[a-zA-Z]|{_GREEK})\s*(?:_\s*(?:\{{[^{{}}]*\}}|\w))?'*"
_SIMPLE_NAME = re.compile(
    rf"\s*(?:{_LETTER}\s*(?:\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\))?|[A-Z]{{2,4}}"
    rf"|\(\s*{_LETTER}(?:\s*,\s*{_LETTER})*\s*\)|\\text\s*\{{[^{{}}\d]*\}}|[A-Za-z]\s*\^\s*\{{?\s*-1\s*\}}?(?:\s*\([a-z]\))?"
    r"|\\?(?:max|min|sup|inf)(?:imum)?(?:\s*[a-zA-Z](?:\s*\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\))?)?)\s*"
)
_SUM_NAME = re.compile(rf"\s*{_LETTER}(?:\s*[-+*]\s*{_LETTER})+\s*")
_RELATION = re.compile("[<>≤≥≠=]")
_REALS = re.compile(r"\s*(?:\\mathbb\s*\{?\s*R\s*\}?|ℝ)\s*")
_REALS_WITHOUT = re.compile(_REALS.pattern + r"(?:⧵|-)\s*⦃([^⦃⦄]*)⦄\s*")
_SUCH_THAT = re.compile(r"\s*⦃\s*([^⦃⦄|:]*?)\s*[|:]\s*([^⦃⦄]*)⦄\s*", re.DOTALL)
_ABSOLUTE = re.compile(r"\s*\|\s*([a-zA-Z])\s*\|\s*")
_MAX_ITEMS, _MAX_WRAPPED = 64, 4


@dataclass(frozen=True)
class Parts:
    """The parts of an answer.

    Attributes:
        kind: "brackets" (a tuple or an interval), "set", "union", "relation" or "matrix".
        brackets: the two of a tuple or an interval; signs of a relation; sizes of a matrix, "()" if it is one column.
        items: the text of each part.
        name: the variable of an interval that was written as a relation; may be empty.
    """

    kind: str
    brackets: str
    items: Sequence[str]
    name: str = ""


def without_braces(text: str) -> str:
    """`text` without LaTeX's braces around the whole."""
    text = text.strip()
    for _ in range(_MAX_WRAPPED):
        if not text.startswith("{") or _closing(text, 0) != len(text) - 1:
            break
        text = text[1:-1].strip()
    return text


def split_list(text: str) -> list[str]:
    r"""The items of a list without brackets: `1, 2`, `1 \text{ or } 2`, `\pm 2`. One item: it is none."""
    if "±" in text and "⦃" not in text:
        if text.count("±") == 1:
            return split_list(text.replace("±", "+")) + split_list(text.replace("±", "-"))
        return [text]
    if ("or" in text or "and" in text) and not _BOTH.search(text):
        text = _AND.sub(", ", text)
    if "," not in text and ";" not in text:
        return [text]
    items = _split(text, ";") if ";" in text else _split(text, ", ")
    if len(items) == 1 and not _THOUSANDS.fullmatch(text):
        items = _split(text, ",")
    if len(items) > 1:
        items = [part for item in items for part in split_list(item) if part.strip()]
    return items if 0 < len(items) <= _MAX_ITEMS else [text]


def split_name(text: str) -> tuple[str, str]:
    """The name that an answer gives its value, as in `x = 5` and `x ∈ [0, 1]`, and the value."""
    if "=" not in text and "∈" not in text:
        return "", text
    sides = _split(text, "∈") if "∈" in text else _split(text, "=")
    if len(sides) == 2 and _RELATION.search("".join(sides)) is None:
        left, right = sides
        if _SIMPLE_NAME.fullmatch(left) or _SUM_NAME.fullmatch(left):
            return "".join(left.split()), right.strip()
        if _SIMPLE_NAME.fullmatch(right) and "∈" not in text:  # 5 = x
            return "".join(right.split()), left.strip()
    return "", text


def is_name(text: str) -> bool:
    """A text that may be what an answer calls its value."""
    return bool(_SIMPLE_NAME.fullmatch(text))


def parts_of(text: str) -> Parts | None:
    """The parts of a tuple, an interval, a set, a union, a relation or a matrix; None if it is none."""
    text = condition(text.strip())
    if without := _REALS_WITHOUT.fullmatch(text):
        return _all_but(_split(without[1], ","))
    if "∪" in text:
        items = _split(text, "∪")
        return _union(items) if 1 < len(items) <= _MAX_ITEMS else None
    if _RELATION.search(text):
        return _relation(text)
    if _REALS.fullmatch(text):
        return Parts("brackets", "()", ("-∞", "∞"))
    if "\\begin" in text and (rows := rows_of(text)):
        return _matrix(rows)
    if text and text[0] in _OPEN and _closing(text, 0) == len(text) - 1:
        items = _split(text[1:-1], ";" if ";" in text else ",")
        if text[0] == "⦃" and len(items) <= _MAX_ITEMS:
            return Parts("set", "", [part.strip() for item in items if item.strip() for part in split_list(item)])
        if 1 < len(items) <= _MAX_ITEMS:
            return Parts("brackets", (text[0] + text[-1]).replace("⟨", "(").replace("⟩", ")"), items)
    return None


def _union(items: Sequence[str]) -> Parts:
    """A union; that of sets alone is a set."""
    parts = [parts_of(item) for item in items]
    if all(part and part.kind == "set" for part in parts):
        return Parts("set", "", list(dict.fromkeys(member for part in parts if part for member in part.items)))
    return Parts("union", "", items)


def condition(text: str) -> str:
    """Condition of a set that is written by one: `x > 3` of `{x | x > 3}`; all else as it is."""
    found = _SUCH_THAT.fullmatch(text)
    if found and _RELATION.search(found[2]):
        name = found[1].split("∈")[0].strip()
        if _SIMPLE_NAME.fullmatch(name):
            return found[2]
    return text


def _matrix(rows: Sequence[Sequence[str]]) -> Parts:
    """A matrix; one of a single column is a vector."""
    cells = [cell for row in rows for cell in row]
    if len(rows) > 1 and all(len(row) == 1 for row in rows):
        return Parts("brackets", "()", cells)
    return Parts("matrix", str([len(row) for row in rows]), cells)


def as_matrix(parts: Parts) -> Parts:
    """`[[1, 2], [3, 4]]` as a matrix of two rows; all else as it is."""
    rows = [parts_of(item) for item in parts.items] if parts.brackets == "[]" else []
    if not rows or not all(row and row.brackets == "[]" and not row.name for row in rows):
        return parts
    return _matrix([row.items for row in rows if row])


def _all_but(points: Sequence[str], name: str = "") -> Parts | None:
    """All real numbers without a few, as the union of what lies between them."""
    values = {rational(form(point)): point.strip() for point in points}
    if len(points) > 1 and None in values:
        return None
    ends = ["-∞", *(values[value] for value in sorted(values, key=lambda value: value or Fraction(0))), "∞"]
    return Parts("union", "", [f"({low},{high})" for low, high in itertools.pairwise(ends)], name)


def _relation(text: str) -> Parts | None:
    """`a < x ≤ b` as the interval of x; any other relation by its sides, the smaller one first."""
    sides, signs, start = [], "", 0
    depth = 0
    for position, char in enumerate(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if not depth and char in "<>≤≥≠=":
            sides.append(text[start:position].strip())
            signs, start = signs + char, position + 1
    sides.append(text[start:].strip())
    if "and" in text and (range_of_both := _range(text)):
        return range_of_both
    if not signs or not all(sides) or len(signs) > 2:
        return None
    if set(signs) <= set(">≥"):
        sides, signs = sides[::-1], signs[::-1].translate(str.maketrans(">≥", "<≤"))
    if not set(signs) <= set("<≤"):
        if signs == "≠" and _SIMPLE_NAME.fullmatch(sides[0]):
            return _all_but(sides[1:], sides[0])
        return Parts("relation", signs, sides) if len(signs) == 1 else None
    if len(signs) == 1:
        sides = _solved(*sides)
    if len(signs) == 1 and (parts := _within(sides[0], sides[1], signs)):
        return parts
    names = [bool(_SIMPLE_NAME.fullmatch(side)) for side in sides]
    left, right = ("[" if signs[0] == "≤" else "("), ("]" if signs[-1] == "≤" else ")")
    if names == [False, True, False]:
        return Parts("brackets", left + right, (sides[0], sides[2]), sides[1])
    if names == [True, False]:
        return Parts("brackets", f"({right}", ("-∞", sides[1]), sides[0])
    if names == [False, True]:
        return Parts("brackets", f"{left})", (sides[0], "∞"), sides[1])
    return Parts("relation", signs, sides)


def _range(text: str) -> Parts | None:
    """`x > 1 and x < 3`, two one-sided ranges of one name, as the interval between."""
    sides = _BOTH_OF.split(text)
    both = [parts_of(side) for side in sides] if len(sides) == 2 else []
    if not both or not all(parts and parts.kind == "brackets" and parts.name for parts in both):
        return None
    one, other = (parts for parts in both if parts)
    low, high = (one, other) if other.items[0] == "-∞" else (other, one)
    if one.name != other.name or low.items[1] != "∞" or high.items[0] != "-∞" or low.items[0] == "-∞":
        return None
    return Parts("brackets", low.brackets[0] + high.brackets[1], (low.items[0], high.items[1]), one.name)


def _within(left: str, right: str, sign: str) -> Parts | None:
    """`|x| < 3` as the interval of x, and `3 < |x|` as the union of two."""
    if (name := _ABSOLUTE.fullmatch(left)) and "|" not in right:
        brackets = "[]" if sign == "≤" else "()"
        return Parts("brackets", brackets, (f"-({right})", right), name[1])
    if (name := _ABSOLUTE.fullmatch(right)) and "|" not in left:
        ends = "][" if sign == "≤" else ")("
        return Parts("union", "", (f"(-∞,-({left}){ends[0]}", f"{ends[1]}{left},∞)"), name[1])
    return None


def _solved(small: str, large: str) -> list[str]:
    """An inequality of one letter that is linear, solved for it: `2x < 6` as `x < 3`."""
    if _SIMPLE_NAME.fullmatch(small) or _SIMPLE_NAME.fullmatch(large):
        return [small, large]
    difference = dict(form(f"({small})-({large})") or ())
    constant = difference.pop(ONE, Fraction(0))
    if len(difference) != 1:
        return [small, large]
    [(monomial, factor)] = difference.items()
    [(name, power), *others] = monomial
    if others or power != 1 or not isinstance(name, str):
        return [small, large]
    bound = str(-constant / factor)
    return [name, bound] if factor > 0 else [bound, name]


def as_relation(parts: Parts) -> Parts:
    """A one-sided interval of a name as the inequality that it was written by; all else as it is."""
    low, high = parts.items if len(parts.items) == 2 else ("", "")
    if parts.name and low == "-∞" and high != "∞":
        return Parts("relation", "≤" if parts.brackets[1] == "]" else "<", (parts.name, high))
    if parts.name and high == "∞" and low not in ("-∞", ""):
        return Parts("relation", "≤" if parts.brackets[0] == "[" else "<", (low, parts.name))
    return parts


def _split(text: str, separator: str) -> list[str]:
    """`text` at the separators that are in no bracket."""
    if separator not in text:
        return [text]
    pieces, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if not depth and char == separator[0] and text.startswith(separator, position):
            pieces.append(text[start:position])
            start = position + len(separator)
    return [*pieces, text[start:]]


def _closing(text: str, start: int) -> int:
    """Position of the bracket, of any kind (an interval may be half open), that closes the one at `start`; or -1."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] in _OPEN) - (text[position] in _CLOSE)
        if depth == 0:
            return position
    return -1


_NAME = r"(?:[pbBvV]?(?:small)?matrix\*?|array)"
_FORMAT = r"(?:\s*\{[lcr|\s]*\}|\s*\[[lcr]\])?"
_MATRIX = re.compile(
    rf"(?P<before>.*?)(?P<open>[(\[|⦃]?)\s*\\begin\s*\{{(?P<name>{_NAME})\}}{_FORMAT}(?P<inside>.*)"
    rf"\\end\s*\{{(?P=name)\}}\s*(?P<close>[)\]|⦄]?)(?P<behind>.*)",
    re.DOTALL,
)
_TURNED = re.compile(r"\^\s*\{?\s*(?:\\top|T|\\text\s*\{\s*T\s*\}|\\intercal)\s*\}?")
_SPACING = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]|\\cr(?![a-zA-Z])\s*")
_RULE = re.compile(r"\\(?:hline|vdots|ddots)(?![a-zA-Z])\s*")
_PAIRS = {("(", ")"), ("[", "]"), ("⦃", "⦄"), ("", "")}
_MAX_DETERMINANT = 3


def rows_of(text: str) -> list[list[str]] | None:
    """The cells of a matrix with the factor before or behind it in each; None if `text` is none."""
    found = _MATRIX.fullmatch(text)
    if not found or found["name"][0] in "vV" or (found["open"], found["close"]) not in _PAIRS:
        return None
    rows = _rows(found["inside"])
    behind = found["behind"].strip()
    if turned := _TURNED.match(behind):
        if len({len(row) for row in rows}) > 1:
            return None
        rows, behind = [list(column) for column in zip(*rows, strict=True)], behind[turned.end() :].strip()
    if behind and behind[0] not in "*/":
        return None
    before = found["before"].strip().removesuffix("*").strip()
    before = f"{before}1" if before in ("-", "+") else before
    if "\\begin" in before or "\\det" in before or "\\begin" in behind:
        return None
    if behind:
        rows = [[f"({cell}){behind[0]}({behind[1:]})" for cell in row] for row in rows]
    return [[f"({before})*({cell})" for cell in row] for row in rows] if before else rows


def determinant(text: str) -> str | None:
    """The formula of a determinant of two or three rows, `vmatrix` or `\\det`; None if `text` is none."""
    is_named = text.startswith("\\det")
    found = _MATRIX.fullmatch(text.removeprefix("\\det").strip() if is_named else text)
    if not found or found["before"].strip() or found["behind"].strip():
        return None
    around, kind = (found["open"], found["close"]), found["name"][0]
    has_bars = (kind == "v" and around == ("", "")) or (kind not in "pbBvV" and around == ("|", "|"))
    if not has_bars and not (is_named and around in _PAIRS):
        return None
    rows = _rows(found["inside"])
    if not 1 < len(rows) <= _MAX_DETERMINANT or any(len(row) != len(rows) for row in rows):
        return None
    terms = []
    for order in itertools.permutations(range(len(rows))):
        swaps = sum(one > other for one, other in itertools.combinations(order, 2))
        terms.append("-" * (swaps % 2) + "*".join(f"({rows[row][column]})" for row, column in enumerate(order)))
    return "+".join(f"({term})" for term in terms)


def _rows(inside: str) -> list[list[str]]:
    inside = _RULE.sub("", _SPACING.sub(r"\\\\", inside))
    return [row.split("&") for row in inside.replace(r"\\", "\n").strip().split("\n") if row.strip()]
