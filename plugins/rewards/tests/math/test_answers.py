from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from slime_rewards.math import answers
from slime_rewards.math.answers import find_answer, last_number
from slime_rewards.math.compare import same
from slime_rewards.math.options import AnswerForm
from slime_rewards.math.rewards import MathReward
from slime_testing.plugins import sample


@pytest.mark.parametrize(
    ("form", "response", "found"),
    [
        (AnswerForm.boxed, "so \\boxed{\\frac{1}{2}} it is", ("\\frac{1}{2}", True)),
        (AnswerForm.boxed, "\\boxed{1} no, \\boxed{2}", ("2", True)),
        (AnswerForm.boxed, "\\boxed{}", ("", True)),
        (AnswerForm.boxed, "\\boxed{\\frac{1}{2}", (None, False)),
        (AnswerForm.boxed, "Answer: 5", (None, False)),
        (AnswerForm.boxed, "\\boxed{6}, or \\boxed{", ("6", True)),
        (AnswerForm.boxed, "\\boxed{5}, \\boxed{6}, \\boxed{x \\boxed{", ("6", True)),
        (AnswerForm.boxed, "\\boxed{the inner \\boxed{6} counts", ("6", True)),
        (AnswerForm.boxed, "\\boxed{\\left\\{1\\right.} or \\boxed{\\}", ("\\left\\{1\\right.", True)),
        (AnswerForm.line, "Answer: 4\nNo.\nAnswer: 5", ("5", True)),
        (AnswerForm.line, "**Answer:** 5\n", ("5", True)),
        (AnswerForm.line, "the answer is: $x$", ("$x$", True)),
        (AnswerForm.line, "5", (None, False)),
        (AnswerForm.line, "İ ANSWER: 5\nan answering machine", ("5", True)),
        (AnswerForm.line, "Answer:\n5\nTo answer:", ("5", True)),
        (AnswerForm.number, "3-5", ("5", False)),
        (AnswerForm.number, "x=-5", ("-5", False)),
        (AnswerForm.number, "about 1,234.5 in x2", ("1,234.5", False)),
        (AnswerForm.number, "3/4.", ("3/4", False)),
        (AnswerForm.number, "Answer: none", (None, False)),
        (AnswerForm.number, "12 " + "x" * 1000, ("12", False)),
        (AnswerForm.number, "3" * 300, ("3" * 300, False)),
        (AnswerForm.number, "-" + "3" * 256, ("-" + "3" * 256, False)),
        (AnswerForm.number, "12" + ",345" * 64, ("12" + ",345" * 64, False)),
        (AnswerForm.auto, "Answer: 5, or \\boxed{6}, or 7", ("6", True)),
        (AnswerForm.auto, "Answer: 5\nor 7", ("5", True)),
        (AnswerForm.auto, "it is 7", ("7", False)),
        (AnswerForm.boxed, "so \\boxed 5", ("5", True)),
        (AnswerForm.boxed, "so \\boxed12.", ("12", True)),
        (AnswerForm.boxed, "\\boxed{5}, that is \\boxed x", ("x", True)),
        (AnswerForm.boxed, "\\boxed {5} and \\fbox{6}", ("5, 6", True)),
        (AnswerForm.boxed, "a \\boxed sign", (None, False)),
        (AnswerForm.auto, "The answer is 5. I am sure.", ("5", True)),
        (AnswerForm.auto, "The answer is $(1,2)$ because both are in the set", ("$(1,2)$", True)),
        (AnswerForm.auto, "the answer is therefore \\(5\\), as was to be shown in the beginning", ("\\(5\\)", True)),
        (AnswerForm.auto, "The answer to the second question is **3.14**.", ("3.14", True)),
        (AnswerForm.auto, "The answer is 5 (approximately)", ("5", True)),
        (AnswerForm.auto, "Answer: 5\nSo the answer is 6.", ("6", True)),
        (AnswerForm.auto, "The answer is given by $x=5$.", ("$x=5$", True)),
        (AnswerForm.auto, "The answer is $1$ or $2$.", ("$1$ or $2$", True)),
        (AnswerForm.auto, "The answer is not 5. So it is 6.", ("6", False)),
        (AnswerForm.auto, "The answer is 5. That answer is easy to check.", ("5", True)),
        (AnswerForm.auto, "The answer is quite easy to see. So $x=6$.", ("x=6", False)),
        (AnswerForm.auto, "The answer is no solution", ("no solution", True)),
        (AnswerForm.auto, "<answer> 5 </answer> done", ("5", True)),
        (AnswerForm.auto, "6 / 2 = 3\n#### 1,234", ("1,234", True)),
        (AnswerForm.auto, "#### 5\nNo: the answer is 6", ("6", True)),
        (AnswerForm.auto, "So $x = \\frac{1}{2}$.", ("x = \\frac{1}{2}", False)),
        (AnswerForm.auto, "So $$x^2 = 4 \\implies x = 2$$", ("x = 2", False)),
        (AnswerForm.auto, "We have $x = 5$, so it is 7", ("7", False)),
        (AnswerForm.auto, "it is -\\frac{1}{2} now", ("-\\frac{1}{2}", False)),
        (AnswerForm.line, "The answer is 5.", (None, False)),
        (AnswerForm.number, "So $x = \\frac{1}{2}$", ("2", False)),
        (AnswerForm.auto, "", (None, False)),
    ],
)
def test_where_the_answer_is_read(form: AnswerForm, response: str, found: tuple[str | None, bool]) -> None:
    assert find_answer(response, form) == found


@pytest.mark.parametrize(
    ("form", "response", "found"),
    [
        (AnswerForm.auto, "Step 2: we try", (None, False)),
        (AnswerForm.number, "so it is 12", (None, False)),
        (AnswerForm.auto, "\\boxed{6} is wrong, so try 5 and continue with \\boxed{", (None, False)),
        (AnswerForm.auto, "Answer: 5\nIn short: \\boxed{", (None, False)),
        (AnswerForm.boxed, "\\boxed{6} is wrong: \\boxed{5", (None, False)),
        (AnswerForm.auto, "\\boxed{6}. To see wh", ("6", True)),
        (AnswerForm.line, "Answer: 5\nTo see wh", ("5", True)),
        (AnswerForm.line, "Answer: 5\nNo. Answer: 1", (None, False)),
        (AnswerForm.auto, "Answer: 1", (None, False)),
        (AnswerForm.auto, "so \\boxed 5", (None, False)),
        (AnswerForm.auto, "so \\boxed 5 as", ("5", True)),
        (AnswerForm.auto, "The answer is 3.", (None, False)),
        (AnswerForm.auto, "The answer is 3.\nTo see wh", ("3", True)),
        (AnswerForm.auto, "So $x = 5$ and", (None, False)),
        (AnswerForm.auto, "<answer>5", (None, False)),
        (AnswerForm.auto, "<answer>5</answer>", ("5", True)),
        (AnswerForm.auto, "#### 1", (None, False)),
    ],
)
def test_a_response_that_was_cut_off_states_only_what_is_complete(
    form: AnswerForm, response: str, found: tuple[str | None, bool]
) -> None:
    assert find_answer(response, form, is_cut=True) == found


RESPONSES = (Path(__file__).parent / "data" / "responses.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", RESPONSES)
def test_the_answer_of_a_response_is_found_and_compared(line: str) -> None:
    """Boxes, sentences, headings, tags, choices and bare numbers, as models write them."""
    row = json.loads(line)
    answer, _ = find_answer(row["response"], AnswerForm.auto)
    assert (answer is not None and same(answer, row["label"])) == row["right"]


STATED = [json.loads(line) for line in (Path(__file__).parent / "data" / "stated.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in STATED}))
def test_where_models_state_their_answers(kind: str) -> None:
    """Boxes and several of them, other languages, a word alone, notes, sentences; and labels of published sets."""
    reward = MathReward()
    rows = [row for row in STATED if row["kind"] == kind]
    assert {row["right"] for row in rows} == {True, False}
    assert [row for row in rows if reward.score(sample(row["response"], row["label"])).value != row["right"]] == []


def test_lower_case_changes_the_length_of_one_letter_only() -> None:
    """Positions found in the lower-case text are used in the text itself."""
    assert [char for char in map(chr, range(0x110000)) if len(char.lower()) != 1] == ["İ"]


def test_searching_from_the_end_finds_the_last_number_of_all() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices(["1", "23", ",456", "-", "/", ".", "x", " ", "a" * 250], k=rng.randrange(12)))
        matches = answers._NUMBER.findall(text)
        assert last_number(text) == (matches[-1] if matches else None)
