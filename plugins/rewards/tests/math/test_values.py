from __future__ import annotations

import random
import time

import pytest
import sympy

from slime_rewards.math.compare import same
from slime_rewards.math.formulas import tree
from slime_rewards.math.values import agree

LETTERS = {letter: sympy.Symbol(letter, real=True) for letter in "xy"}


def drawn(draw: random.Random, depth: int) -> str:
    """A formula in LaTeX that sympy reads as well after `to_sympy`."""
    if depth == 0:
        return draw.choice([*LETTERS, str(draw.randrange(1, 6)), r"\pi"])
    one, other = drawn(draw, depth - 1), drawn(draw, depth - 1)
    shapes = ["({0}+{1})", "({0}-{1})", "({0}*{1})", "({0})^{{2}}"]
    shapes += [r"\frac{{{0}}}{{{1}}}", r"\sqrt{{{0}}}", r"\sin({0})"]
    return draw.choice(shapes).format(one, other)


def to_sympy(text: str) -> sympy.Expr:
    """By a grammar of its own: nothing of the grader's."""
    while "frac" in text:
        start = text.rindex(r"\frac")
        above, rest = group(text[start + 5 :])
        below, rest = group(rest)
        text = f"{text[:start]}(({above})/({below})){rest}"
    for command, name in ((r"\sqrt", "sqrt"), (r"\sin", "sin"), (r"\pi", "pi"), ("^", "**"), ("{", "("), ("}", ")")):
        text = text.replace(command, name)
    return sympy.sympify(text, locals=LETTERS)


def group(text: str) -> tuple[str, str]:
    depth = 0
    for at, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            return text[1:at], text[at + 1 :]
    raise AssertionError(text)


def test_values_agree_where_those_of_sympy_do() -> None:
    """Sums drawn at random against sympy's numbers at points that are not the grader's."""
    draw = random.Random(0)
    points = [dict(zip(LETTERS.values(), at, strict=True)) for at in ((0.734, 1.291), (-0.412, 0.866), (1.7, -2.03))]
    seen = {True: 0, False: 0}
    for _ in range(400):
        one = drawn(draw, 2)
        kind = draw.randrange(3)
        other = [drawn(draw, 2), f"({one})*y-y*({one})+({one})", f"{one}+{drawn(draw, 1)}-1"][kind]
        given = [tree(text) for text in (one, other)]
        assert given[0] is not None
        assert given[1] is not None
        try:
            values = [[complex(to_sympy(text).subs(point)) for text in (one, other)] for point in points]
        except (TypeError, ValueError, ZeroDivisionError):  # no value at a point: a division by zero
            continue
        if any(value != value for pair in values for value in pair):
            continue
        expected = all(abs(a - b) < 1e-9 * max(1, abs(a)) for a, b in values)
        assert agree(given[0], given[1]) == expected, (one, other)
        seen[expected] += 1
    assert min(seen.values()) > 80


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3.141592653589793238462643383279502884197169399375105820974944592307816406286", r"\pi"),
        (r"\sqrt{2}", "1.41421356237309504880168872420969807856967187537694807317667973799"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"),
        (r"e^{-230}", "0"),
        (r"\sqrt{x^2}", "x"),
        (r"\ln(x^2)", r"2\ln x"),
        (r"\frac{x}{x}+\frac{1}{10^{90}}", "1"),
        (r"\log 100", "2"),
        (r"\sin 30", r"\frac12"),
        (r"\frac{1}{\sqrt{2}\sqrt{3}-\sqrt{6}}", r"\frac{2}{\sqrt{2}\sqrt{3}-\sqrt{6}}"),
    ],
)
def test_almost_the_same_is_another_answer(one: str, other: str) -> None:
    assert not same(one, other)
    assert not same(other, one)


@pytest.mark.parametrize(
    "piece",
    [
        r"9^{9^{9^{9}}}+x\pi",
        r"\sqrt{\sqrt{x}+",
        r"\sin(e^{x}",
        r"\binom{400}{x}*",
        r"(x+\pi)!",
        r"\ln(1+\ln(",
        r"\arctan(x)^",
    ],
)
def test_no_formula_takes_long(piece: str) -> None:
    """Each is as long as a formula may be; the sizes of its values end it, or its length does."""
    for times in (1, 5, 12, 40):
        text = (piece * times)[:2000]
        for closing in ("", "}" * 24, ")" * 24, "1" + ")" * times, "1" + "}" * times):
            began = time.process_time()
            same(text + closing, text + closing + "+0.1")
            assert time.process_time() - began < 5.0
