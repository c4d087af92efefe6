"""Finds the answer that a response states, from the end, where it stands."""

from __future__ import annotations

import re

from slime_plugin_math.options import AnswerForm

_BOX = "\\boxed{"
_BRACE = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)  # an escaped brace is none
_LINE = re.compile(r"\banswer(?:\s+is)?\s*:\s*([^\n]+)", re.IGNORECASE)
# A sign belongs to the number unless something stands before it: "3-5" ends in 5, "x=-5" in -5.
_NUMBER = re.compile(r"(?<![\w.)\]])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?")
_TAIL, _MARGIN = 256, 8


def find_answer(response: str, form: AnswerForm, *, is_cut: bool = False) -> tuple[str | None, bool]:
    """The stated answer (None if there is none), and whether it is marked as such by a box or an "Answer:" line.

    Args:
        response: its text.
        form: where to look.
        is_cut: the response was stopped at its length limit. Then only what is complete counts: a box if the last one
            is closed, else a line if the last one has its end. A number may be on the way to an answer, or half of one.
    """
    if form in (AnswerForm.auto, AnswerForm.boxed):
        boxed = last_boxed(response, is_cut=is_cut)
        if boxed is not None or (is_cut and _BOX in response):
            return boxed, boxed is not None
    if form in (AnswerForm.auto, AnswerForm.line):
        line = answer_line(response, is_cut=is_cut)
        if line is not None:
            return line, True
    if form in (AnswerForm.auto, AnswerForm.number) and not is_cut:
        return last_number(response), False
    return None, False


def last_boxed(text: str, *, is_cut: bool = False) -> str | None:
    r"""What stands in the last `\boxed{...}` that is closed; None if there is none, or if `is_cut` left it open."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth, begin = 1, start + len(_BOX)
    for brace in _BRACE.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[begin : brace.start()]
    return None if is_cut else _last_closed(text[:start])


def _last_closed(text: str) -> str | None:
    """Of the boxes that are closed, the content of the one that begins last."""
    open_braces: list[re.Match[str]] = []
    last = None
    for brace in _BRACE.finditer(text):
        if brace[0] in ("{", _BOX):
            open_braces.append(brace)
        elif brace[0] == "}" and open_braces:
            opening = open_braces.pop()
            if opening[0] == _BOX and (last is None or opening.end() > last[0]):
                last = (opening.end(), brace.start())
    return text[slice(*last)] if last else None


def answer_line(text: str, *, is_cut: bool = False) -> str | None:
    """What follows the last "Answer:" on its line, without Markdown's asterisks; None if `is_cut` left it endless."""
    lower = text.replace("İ", "I").lower()  # the one letter that becomes two in lower case: positions must stay
    end = len(text)
    while (start := lower.rfind("answer", 0, end)) >= 0:
        if line := _LINE.match(text, start):
            return None if is_cut and line.end() == len(text) else line[1].strip(" *\t\r")
        end = start + len("answer") - 1
    return None


def last_number(text: str) -> str | None:
    """The last integer, decimal or fraction in the text."""
    for begin in (max(0, len(text) - _TAIL), 0):
        number = None
        for number in _NUMBER.finditer(text, begin):  # noqa: B007
            pass
        if number and (begin == 0 or number.start() > begin + _MARGIN):  # else it may be the end of a longer one
            return number[0]
    return None
