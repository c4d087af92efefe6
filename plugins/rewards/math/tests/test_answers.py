from __future__ import annotations

import pytest

from slime_plugin_math.answers import find_answer
from slime_plugin_math.options import AnswerForm


@pytest.mark.parametrize(
    ("form", "response", "found"),
    [
        (AnswerForm.boxed, "so \\boxed{\\frac{1}{2}} it is", ("\\frac{1}{2}", True)),
        (AnswerForm.boxed, "\\boxed{1} no, \\boxed{2}", ("2", True)),
        (AnswerForm.boxed, "\\boxed{}", ("", True)),
        (AnswerForm.boxed, "\\boxed{\\frac{1}{2}", (None, False)),
        (AnswerForm.boxed, "Answer: 5", (None, False)),
        (AnswerForm.line, "Answer: 4\nNo.\nAnswer: 5", ("5", True)),
        (AnswerForm.line, "**Answer:** 5\n", ("5", True)),
        (AnswerForm.line, "the answer is: $x$", ("$x$", True)),
        (AnswerForm.line, "5", (None, False)),
        (AnswerForm.number, "3-5", ("5", False)),
        (AnswerForm.number, "x=-5", ("-5", False)),
        (AnswerForm.number, "about 1,234.5 in x2", ("1,234.5", False)),
        (AnswerForm.number, "3/4.", ("3/4", False)),
        (AnswerForm.number, "Answer: none", (None, False)),
        (AnswerForm.auto, "Answer: 5, or \\boxed{6}, or 7", ("6", True)),
        (AnswerForm.auto, "Answer: 5\nor 7", ("5", True)),
        (AnswerForm.auto, "it is 7", ("7", False)),
        (AnswerForm.auto, "", (None, False)),
    ],
)
def test_where_the_answer_is_read(form: AnswerForm, response: str, found: tuple[str | None, bool]) -> None:
    assert find_answer(response, form) == found
