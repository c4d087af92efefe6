r"""Reads a formula in one spelling into a tree, by recursive descent. What it does not know has no tree.

A tree is a tuple that begins with its kind:

    ("number", Fraction)   ("name", text)   ("+", a, b)   ("-", a)   ("*", a, b)   ("/", a, b)   ("^", a, b)
    ("_", a, index)   ("!", a)   ("root", degree, a)   ("choose", n, k)   ("apply", function, index or None, a)
    ("abs", a)   ("floor", a)   ("ceil", a)   ("degree", a)
    ("max", a, ...)   ("min", a, ...)   ("gcd", a, ...)   ("lcm", a, ...)
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Any

from slime_rewards.math.forms import Form, Unreadable, folded, form_of

Tree = tuple[Any, ...]

# Thousands are parted by commas or blanks; "3 125/200" is a mixed number instead.
_INTEGER = r"\d{1,3}(?:,\d{3})+(?![\d,])|\d{1,3}(?: \d{3})+(?! ?[\d/])|\d+"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>(?:(?:{_INTEGER})(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{{1,3}}(?![\d.]))?)"
    r"|(?P<word>[a-zA-Z]+'*|\\[a-zA-Z]+|[∞…∅])|(?P<sign>\*\*|[-+*/^_(){}⦃⦄\[\],!|°⌊⌋⌈⌉]))"
)
_TRIGONOMETRIC = r"(?:sin|cos|tan|cot|sec|csc)"
_FUNCTION = re.compile(rf"\\(?:(?:arc)?{_TRIGONOMETRIC}h?|ln|log|lg|exp|arg|det)$")
_OF_SEVERAL = re.compile(r"\\(?:max|min|gcd|lcm)$")
_HAS_INVERSE = re.compile(rf"\\{_TRIGONOMETRIC}h?$")
_UNKNOWN_FUNCTION = ("f", "g")
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon"
    r"|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell|hbar)$"
)
_COMMAND_WORD = re.compile(
    rf"(?:(?:arc)?{_TRIGONOMETRIC}h?|ln|log|exp|sqrt|max|min|gcd|lcm|pi|theta|alpha|beta)$"
)  # without its sign
_PRODUCT = re.compile("[a-dkm-np-tx-z]{2,3}$")  # letters that stand for numbers: `xy` is x times y, `on` is no product
_CLOSING = {"(": ")", "{": "}", "[": "]", "⌊": "⌋", "⌈": "⌉", "|": "|"}
_GROUPS = {"⌊": "floor", "⌈": "ceil", "|": "abs"}
_MINUS_ONE = ("-", ("number", Fraction(1)))
_MAX_TOKENS, _MAX_DEPTH, _MAX_DIGITS = 400, 24, 400


@functools.lru_cache(maxsize=4096)  # a label is compared with every response of its prompt
def form(text: str) -> Form | None:
    """The normal form of `text`, which `spelled` gave; None if it has none."""
    found = tree(text)
    if found is None:
        return None
    try:
        return form_of(folded(found))
    except Unreadable:
        return None


@functools.lru_cache(maxsize=4096)
def tree(text: str) -> Tree | None:
    """The tree of `text`, which `spelled` gave; None if it has none."""
    if "∞" in text and text.strip(" +-") != "∞":
        return None  # it is no number to reckon with
    try:
        return _Parser(_tokens(text)).whole()
    except Unreadable:
        return None


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and text of each token: number, word or sign."""
    tokens: list[tuple[str, str]] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found or len(tokens) == _MAX_TOKENS:
            raise Unreadable
        kind, token = str(found.lastgroup), found[0].strip()
        if kind == "word" and _COMMAND_WORD.match(token):
            token = f"\\{token}"
        tokens.append((kind, "^" if token == "**" else token))
        position = found.end()
    return tokens


class _Parser:
    """A recursive-descent parser. Depths count what is open: groups, and arguments of commands."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at, self._is_in_bars = tokens, 0, False

    def whole(self) -> Tree:
        value = self._sum(0)
        if self._at != len(self._tokens):
            raise Unreadable
        return value

    def _sum(self, depth: int) -> Tree:
        """Terms with + and - before and between them."""
        if depth > _MAX_DEPTH:
            raise Unreadable
        total = self._term(depth)
        while self._sign() in ("+", "-"):
            total = ("+", total, self._term(depth))
        return total

    def _term(self, depth: int) -> Tree:
        is_negative = self._is_negative()
        value = self._product(depth)
        return ("-", value) if is_negative else value

    def _product(self, depth: int) -> Tree:
        """Factors with *, / or nothing between them. What `a/b/c` and `1/2x` mean is not known."""
        value, is_divided = self._power(depth), False
        while self._at < len(self._tokens):
            sign = self._sign()
            if sign in ("*", "/"):
                if sign == "/" and is_divided:
                    raise Unreadable
                self._at += 1
                is_negative = self._is_negative()
                factor = self._power(depth)
                factor = ("-", factor) if is_negative else factor
                is_divided = is_divided or sign == "/"
                value = (sign, value, factor)
            elif sign is None or (sign in _CLOSING and not (sign == "|" and self._is_in_bars)):
                if is_divided or (self._tokens[self._at][0] == "number" and not self._is_behind_power(value)):
                    raise Unreadable
                value = ("*", value, self._power(depth))
            else:
                break
        return value

    def _is_behind_power(self, value: Tree) -> bool:
        """A value behind which a number begins a factor: `2^{3} 5`, `5! 3`."""
        last = value[2] if value[0] == "*" else value
        return bool(last[0] == "!" or (last[0] == "^" and self._tokens[self._at - 1][1] == "}"))

    def _power(self, depth: int) -> Tree:
        """A factor with what stands above, below and behind it."""
        base = self._factor(depth)
        while (sign := self._sign()) in ("^", "!", "_", "°"):
            self._at += 1
            if sign == "!":
                if self._sign() == "!":
                    raise Unreadable  # 5!! is another thing
                base = ("!", base)
            elif sign == "°":
                base = ("degree", base)
            else:
                base = (sign, base, self._raised_or_lowered(depth))
        return base

    def _raised_or_lowered(self, depth: int) -> Tree:
        """A group in braces, or one token: 10^12 means what was typed, not what LaTeX sets."""
        is_negative = self._is_negative()
        value: Tree
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "number":
            value = ("number", _number(self._next()[1]))
        else:
            value = self._argument(depth)
        return ("-", value) if is_negative else value

    def _argument(self, depth: int) -> Tree:
        """Argument of a command: a group in braces, or one character."""
        kind, text = self._next()
        if text == "{":
            return self._until("}", depth)
        if kind == "number":
            if len(text) > 1 and text.isdecimal():  # \frac12
                self._at -= 1
                self._tokens[self._at] = (kind, text[1:])
                text = text[0]
            return ("number", _number(text))
        self._at -= 1
        return self._factor(depth + 1)

    def _factor(self, depth: int) -> Tree:
        if depth > _MAX_DEPTH:
            raise Unreadable
        kind, text = self._next()
        if kind == "number":
            return ("number", self._mixed(_number(text)))
        if kind == "word":
            return self._word(text, depth)
        if text == "|":
            return self._bars(depth)
        if text not in _CLOSING:
            raise Unreadable
        value = self._until(_CLOSING[text], depth)
        return (_GROUPS[text], value) if text in _GROUPS else value

    def _bars(self, depth: int) -> Tree:
        """|x|, with no bars inside: which of them open could not be told."""
        if self._is_in_bars:
            raise Unreadable
        self._is_in_bars = True
        value = self._until("|", depth)
        self._is_in_bars = False
        return ("abs", value)

    def _mixed(self, whole: Fraction) -> Fraction:
        r"""A whole number before a proper fraction of two, `3 1/2` or `3\frac{1}{2}`, is their sum."""
        ahead = self._tokens[self._at : self._at + 7]
        digits = [text for kind, text in ahead if kind == "number"]
        shape = "".join("0" if kind == "number" else text for kind, text in ahead)
        if shape.startswith("0/0"):
            length = 3
        elif shape == "\\frac{0}{0}":
            length = 7
        elif shape.startswith("\\frac0") and len(digits[0]) == 2:
            length, digits = 2, list(digits[0])
        else:
            return whole
        above, below = (_number(text) for text in digits[:2])
        if whole.denominator != 1 or above.denominator != 1 or below.denominator != 1 or not above < below:
            raise Unreadable
        self._at += length
        return whole + above / below

    def _word(self, text: str, depth: int) -> Tree:
        if text == "\\frac":
            above = self._argument(depth + 1)
            return ("/", above, self._argument(depth + 1))
        if text == "\\sqrt":
            return self._root(depth)
        if text == "\\binom":
            above = self._argument(depth + 1)
            return ("choose", above, self._argument(depth + 1))
        if _FUNCTION.match(text):
            return self._applied(text, depth)
        if _OF_SEVERAL.match(text):
            return (text[1:], *self._several(depth))
        if text in _UNKNOWN_FUNCTION and self._sign() == "(":
            return ("apply", text, None, self._factor(depth + 1))
        if text[0] == "\\" and not _GREEK.match(text):
            raise Unreadable
        if _PRODUCT.match(text):
            return functools.reduce(lambda value, letter: ("*", value, ("name", letter)), text[1:], ("name", text[0]))
        return ("name", text)

    def _several(self, depth: int) -> list[Tree]:
        """The arguments of a function of several, in any brackets."""
        closing = {"(": ")", "⦃": "⦄", "{": "}", "[": "]"}.get(self._next()[1])
        values = [self._sum(depth + 1)]
        while (end := self._next()[1]) == ",":
            values.append(self._sum(depth + 1))
        if end != closing:
            raise Unreadable
        return values

    def _root(self, depth: int) -> Tree:
        degree: Tree = ("number", Fraction(2))
        if self._sign() == "[":
            self._at += 1
            degree = self._until("]", depth)
        value = self._argument(depth + 1)
        if degree[0] == "name":  # the n-th root
            return ("^", value, ("/", ("number", Fraction(1)), degree))
        return ("root", degree, value)

    def _applied(self, name: str, depth: int) -> Tree:
        r"""A function takes a group, or all factors up to the next function: `\sin^2 2x`."""
        index = power = None
        while (sign := self._sign()) in ("_", "^"):
            self._at += 1
            value = self._raised_or_lowered(depth + 1)
            index, power = (value, power) if sign == "_" else (index, value)
        is_group = self._sign() in _CLOSING
        argument = self._power(depth + 1)
        while not is_group and self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind != "word" or (text[0] == "\\" and not _GREEK.match(text)):
                break
            argument = ("*", argument, self._power(depth + 1))
        if power == _MINUS_ONE and _HAS_INVERSE.match(name):
            return ("apply", f"\\arc{name[1:]}", index, argument)
        applied = ("apply", name, index, argument)
        return applied if power is None else ("^", applied, power)

    def _until(self, closing: str, depth: int) -> Tree:
        value = self._sum(depth + 1)
        if self._next()[1] != closing:
            raise Unreadable
        return value

    def _is_negative(self) -> bool:
        """Reads the sign that may stand before a value."""
        sign = self._sign()
        self._at += sign in ("+", "-")
        return sign == "-"

    def _sign(self) -> str | None:
        """The sign that follows; None where a number, a word or nothing does."""
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "sign":
            return self._tokens[self._at][1]
        return None

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise Unreadable
        self._at += 1
        return self._tokens[self._at - 1]


def _number(text: str) -> Fraction:
    digits = text.replace(",", "").replace(" ", "")
    if len(digits) > _MAX_DIGITS:
        raise Unreadable
    return Fraction(f"0{digits}")
