from __future__ import annotations

import math
import random
import time
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from slime_rewards.math import values as residues
from slime_rewards.math.answers import label_text
from slime_rewards.math.compare import Reading, number, read, same
from slime_rewards.math.formulas import tree
from slime_rewards.math.spelling import spelled


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
        ("1\u202f234\u00a0567", Fraction(1234567)),
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


PAIRS = [line.split("\t") for line in (Path(__file__).parent / "data" / "pairs.tsv").read_text().splitlines()[1:]]


def test_the_labelled_pairs_are_many() -> None:
    """Of each kind right ones, and wrong ones that are a slip away."""
    assert len(PAIRS) >= 250
    assert len({(answer, label) for _, _, answer, label in PAIRS}) == len(PAIRS)
    counts = Counter((kind, judgement) for kind, judgement, _, _ in PAIRS)
    assert min(counts.values()) >= 6
    assert {judgement for _, judgement in counts} == {"same", "other"}


@pytest.mark.parametrize(("kind", "judgement", "answer", "label"), PAIRS)
def test_labelled_pairs(kind: str, judgement: str, answer: str, label: str) -> None:
    assert same(answer, label) == (judgement == "same")


def rows(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (Path(__file__).parent / "data" / name).read_text().splitlines()[1:]]


GRADED, HELD_OUT = rows("graded.tsv"), rows("held-out.tsv")


def test_the_graded_pairs_are_many_balanced_and_of_each_kind() -> None:
    assert len(GRADED) >= 400
    assert len({tuple(row[3:]) for row in GRADED}) == len(GRADED)
    judgements = Counter(judgement for _, judgement, *_ in GRADED)
    assert min(judgements["same"], judgements["other"]) >= 0.4 * len(GRADED)
    assert len({kind for kind, *_ in GRADED}) == 8
    assert min(Counter(kind for kind, *_ in GRADED).values()) >= 20


@pytest.mark.parametrize(("kind", "judgement", "difficulty", "answer", "label"), GRADED)
def test_graded_pairs(kind: str, judgement: str, difficulty: str, answer: str, label: str) -> None:
    """Written before the grader was: by what makes them hard, both ways round."""
    assert same(answer, label) == (judgement == "same")
    assert same(label, answer) == (judgement == "same")


@pytest.mark.parametrize(("judgement", "answer", "label"), HELD_OUT)
def test_held_out_pairs(judgement: str, answer: str, label: str) -> None:
    """Written after the grader was; the README says how many of them it got right at first."""
    assert same(answer, label) == (judgement == "same")
    assert same(label, answer) == (judgement == "same")


WRITTEN = rows("written-otherwise.tsv")


def test_the_pairs_that_are_written_otherwise_are_of_each_kind() -> None:
    counts = Counter((kind, judgement) for kind, judgement, _, _ in WRITTEN)
    assert len({(answer, label) for _, _, answer, label in WRITTEN}) == len(WRITTEN)
    assert sum(count for (_, judgement), count in counts.items() if judgement == "same") >= 400
    assert sum(count for (_, judgement), count in counts.items() if judgement == "other") >= 200
    assert min(counts.values()) >= 15


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in WRITTEN}))
def test_what_is_written_otherwise(kind: str) -> None:
    """Sets, closed forms of large numbers, matrices, parameters, `max`, roots and looks, both ways round."""
    wrong = [
        (judgement, answer, label)
        for of, judgement, answer, label in WRITTEN
        if of == kind and {same(answer, label), same(label, answer)} != {judgement == "same"}
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "number",
    ["2^{5000}-1", "3^{4000}", "2000!", "5000!/4998!", "\\binom{1000}{500}", "7^{7^{4}}", "10^{2024}-1", "2^{-3000}"],
)
def test_a_large_number_is_its_digits(number: str) -> None:
    """Python writes it out; one more, and one digit otherwise, is another number."""
    values = {
        "2^{5000}-1": 2**5000 - 1,
        "3^{4000}": 3**4000,
        "2000!": math.factorial(2000),
        "5000!/4998!": 5000 * 4999,
        "\\binom{1000}{500}": math.comb(1000, 500),
        "7^{7^{4}}": 7**7**4,
        "10^{2024}-1": 10**2024 - 1,
        "2^{-3000}": Fraction(1, 2**3000),
    }
    found = tree(spelled(number))
    assert found
    for prime in residues._PRIMES:
        value = Fraction(values[number])
        assert residues.remainder(found, prime) == value.numerator * pow(value.denominator, -1, prime) % prime
        assert residues.remainder(("+", found, tree("1")), prime) != residues.remainder(found, prime)


def test_the_label_says_what_a_sum_is_called_or_nobody_does() -> None:
    """`m+n=34` answers 34, but 34 is no equation of a line."""
    assert same("x+y=34", "34")
    assert not same("34", "x+y=34")


HOSTILE = [
    "9^{9^{9^{9}}}",
    "((x+1)^8)^8",
    "(a+b+c+d)^8",
    "\\binom{200}{100}*",
    "2^{4000}*",
    "99999999999!",
    "4999!+",
    "2^{9999}+",
    "7^{7^{7}}*",
    "\\binom{4999}{2500}-",
    "\\max(2^{999},",
    "\\gcd(2^{999}-1,",
    "\\begin{vmatrix}",
    "\\begin{pmatrix}1&2\\\\",
    "k\\in\\mathbb{Z},",
    "\\begin{cases}x=1\\\\",
    "]0,1[\\cup",
    "\\text{the answer is }",
    "the answer is ",
    "\\sqrt{999999999989}+",
    "\\frac{1}{",
    "\\sqrt{2+",
    "x,",
    "(x+1)^2,",
    "\\{1,",
    "\\pm",
    "½",
    "1 ",
    "cm ",
    "\\text{ or }",
    "{",
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("times", [1, 30, 64, 1000])
def test_an_answer_of_any_shape_is_compared_in_time(piece: str, times: int) -> None:
    """A power of powers, or a list of lists, would keep a computer algebra system busy for ever."""
    answer = (piece * times)[:2000]
    began = time.process_time()
    for label in ("5", f" {answer} ", f"x<{answer}", "".join(reversed(answer)), f"{answer}1", f"2^{{5000}}+{answer}"):
        same(answer, label)
    assert time.process_time() - began < 3.0  # 0.5 s each
    assert same(answer, f" {answer} ")


def test_no_text_raises() -> None:
    rng = random.Random(0)
    pieces = [
        *HOSTILE,
        "\\cup",
        "<",
        "\\le",
        "=",
        "\\text{",
        "}",
        "\\%",
        "$",
        "\\infty",
        "\\sin",
        "^",
        "_",
        "٣",
        "²",
        "0.",
    ]
    for _ in range(2000):
        answer, label = ("".join(rng.choices(pieces, k=rng.choice([3, 8, 20]))) for _ in range(2))
        same(answer, label)
        assert same(answer, answer)


@pytest.mark.parametrize("word", ["sand = 5", "x > thousand", "5 < land < 6", "band < 3 > hand"])
def test_a_word_with_and_in_it_joins_no_ranges(word: str) -> None:
    assert not same(word, "5")
    assert same(word, f" {word} ")


def test_a_large_number_is_compared_exactly_not_as_a_float() -> None:
    assert not same("9007199254740993", "9007199254740992")


def test_reading_twice_changes_nothing_more() -> None:
    for text in ("\\dfrac12 \\text{ m}", "$ x = \\left(3, 4\\right) $", "\\sqrt2.", "1 2", "x \\le 2"):
        assert read(read(text).text) == Reading(read(text).text, name=read(read(text).text).name)


@pytest.mark.parametrize("label", [None, True, [], ["5"], {"answer": 5}, "", "  ", float("nan"), float("inf")])
def test_a_label_that_is_no_text_and_no_number_is_refused(label: object) -> None:
    assert label_text(label) is None


def test_numbers_are_labels_too() -> None:
    assert [label_text(label) for label in (5, 0.5, " 5 ")] == ["5", "0.5", "5"]


@pytest.mark.parametrize(
    ("label", "answer"),
    [
        *[(1e-05, "0.00001"), (1e16, "10,000,000,000,000,000"), (-2.5e-7, "-0.00000025")],
        *[(Decimal("1.20"), "6/5"), (Decimal("1E+3"), "1000"), (Decimal("-0.5"), "-1/2")],
    ],
)
def test_a_number_label_of_any_size_is_what_it_says(label: float | Decimal, answer: str) -> None:
    text = label_text(label)
    assert text is not None
    assert same(answer, text)
    assert not same("7", text)
    assert label_text(Decimal("NaN")) is None
