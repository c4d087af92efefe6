"""Finds the answer that a response states."""

from __future__ import annotations

import re

from slime_plugin_math.options import AnswerForm

_BOX = "\\boxed{"
_LINE = re.compile(r"\banswer(?:\s+is)?\s*:\s*([^\n]+)", re.IGNORECASE)
# A sign belongs to the number unless something stands before it: "3-5" ends in 5, "x=-5" in -5.
_NUMBER = re.compile(r"(?<![\w.)\]])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?")


def find_answer(response: str, form: AnswerForm) -> tuple[str | None, bool]:
    """The stated answer (None if there is none), and whether it is marked as such by a box or an "Answer:" line."""
    boxed = last_boxed(response) if form in (AnswerForm.auto, AnswerForm.boxed) else None
    line = answer_line(response) if form in (AnswerForm.auto, AnswerForm.line) else None
    marked = line if boxed is None else boxed
    if marked is not None:
        return marked, True
    return (last_number(response) if form in (AnswerForm.auto, AnswerForm.number) else None), False


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`; None if there is none or its brace is never closed."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth, begin = 1, start + len(_BOX)
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end]
    return None


def answer_line(text: str) -> str | None:
    """What follows the last "Answer:" on its line, without Markdown's asterisks."""
    found = _LINE.findall(text)
    return found[-1].strip(" *\t\r") if found else None


def last_number(text: str) -> str | None:
    """The last integer, decimal or fraction in the text."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None
