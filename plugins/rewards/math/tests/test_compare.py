from __future__ import annotations

from fractions import Fraction

import pytest

from slime_plugin_math.compare import Reading, label_text, number, read, same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", Fraction(12)),
        ("-7", Fraction(-7)),
        ("+7", Fraction(7)),
        ("1,234,567", Fraction(1234567)),
        ("3.50", Fraction(7, 2)),
        (".5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("-6/8", Fraction(-3, 4)),
        ("\\frac{3}{4}", Fraction(3, 4)),
        ("-\\frac{3}{4}", Fraction(-3, 4)),
        ("\\frac{-3}{4}", Fraction(-3, 4)),
        ("0.1", Fraction(1, 10)),
        ("3 1/2", Fraction(7, 2)),
        ("-3 1/2", Fraction(-7, 2)),
        ("3\\frac{1}{2}", Fraction(7, 2)),
        ("1 234 567", Fraction(1234567)),
    ],
)
def test_numbers_are_read_exactly(text: str, value: Fraction) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "-",
        "x",
        "1/0",
        "\\frac{1}{0}",
        "1e9",
        "12,34",
        "1/2/3",
        "\\frac{x}{2}",
        "9" * 5000,
        "nan",
        "²",
        "1 2",
        "1, 234",
        "3 5/2",
    ],
)
def test_other_text_is_no_number(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("0.5", "\\frac{1}{2}"),
        ("\\dfrac{1}{2}", "1/2"),
        ("\\frac12", "0.50"),
        ("$1{,}234$", "1234"),
        ("x = 5", "5"),
        ("5.", "5"),
        ("5 \\text{ cm}", "5"),
        ("50\\%", "50"),
        ("90^\\circ", "90"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
        ("\\text{Friday}", "Friday"),
        ("3 1/2", "3.5"),
        ("3 \\frac12", "7/2"),
        ("1\\,234", "1234"),
        ("10,\\!080", "10080"),
        ("2, 135", "2,\\,135"),
        ("(1, 234)", "(1,234)"),
        ("5\\text{ cm}", "5 \\mathrm{cm}."),
        ("5\\text{ hours}", "5\\text{ hour}"),
        ("50\\%", "50\\text{ percent}"),
        ("3\\text{ million}", "3 million"),
        ("x=5", "x = 5"),
        ("$\\boxed{5}$", "5"),
        ("5", "\\boxed{5}"),
        (
            "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
            "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        ),
        ("2\\sqrt2", "2\\sqrt{2}"),
        ("−3", "-3"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_answers_that_are_the_same(answer: str, label: str) -> None:
    assert same(answer, label)
    assert same(label, answer)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("5", "6"),
        ("0.333", "1/3"),
        ("(1,2)", "(2,1)"),
        ("x", "y"),
        ("", "0"),
        ("5x", "5"),
        ("12", "1,2"),
        ("-3", "3"),
        ("3 1/2", "15.5"),
        ("3 1/2", "31/2"),
        ("2, 135", "2135"),
        ("1, 234", "1,234"),
        ("1 , 234", "1234"),
        ("1 2", "12"),
        ("1\\quad 2", "12"),
        ("5\\text{ cm}", "5\\text{ m}"),
        ("10\\text{ a.m.}", "10\\text{ p.m.}"),
        ("3\\text{ million}", "3"),
        ("50\\%", "50^\\circ"),
        ("x=5", "y=5"),
        ("1 \\\\ 2", "1 \\ 2"),
    ],
)
def test_answers_that_differ(answer: str, label: str) -> None:
    assert not same(answer, label)


def test_a_large_number_is_compared_exactly_not_as_a_float() -> None:
    assert not same("9007199254740993", "9007199254740992")


def test_reading_twice_changes_nothing_more() -> None:
    for text in ("\\dfrac12 \\text{ m}", "$ x = \\left(3, 4\\right) $", "\\sqrt2.", "1 2", "1, 234"):
        assert read(read(text).text) == Reading(read(text).text)


@pytest.mark.parametrize("label", [None, True, [], ["5"], {"answer": 5}, "", "  ", float("nan"), float("inf")])
def test_a_label_that_is_no_text_and_no_number_is_refused(label: object) -> None:
    assert label_text(label) is None


def test_numbers_are_labels_too() -> None:
    assert [label_text(label) for label in (5, 0.5, " 5 ")] == ["5", "0.5", "5"]


@pytest.mark.parametrize(
    ("label", "answer"), [(1e-05, "0.00001"), (1e16, "10,000,000,000,000,000"), (-2.5e-7, "-0.00000025")]
)
def test_a_number_label_of_any_size_is_what_it_says(label: float, answer: str) -> None:
    text = label_text(label)
    assert text is not None
    assert same(answer, text)
