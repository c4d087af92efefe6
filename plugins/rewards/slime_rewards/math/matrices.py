r"""Matrices in LaTeX's environments, as rows of cells: `pmatrix`, `bmatrix`, `smallmatrix`, `array` and others.

The kind of brackets around a matrix changes nothing, but for bars, which make it a determinant.
"""

from __future__ import annotations

import itertools
import re

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
