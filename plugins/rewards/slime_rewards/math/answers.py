"""Finds the answer that a response states, from the end, where it stands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from slime_rewards.math.options import AnswerForm
from slime_rewards.math.wordings import said_otherwise, without_notes, word_said

_BOX = "\\boxed{"
_BRACE = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)  # an escaped brace is none
_OTHER_BOX = re.compile(r"\\(?:boxed\s+|(?:fbox|framebox)\s*)\{")
_NO_ANSWER = re.compile(
    r"[\s.…$]*|\\[lc]?dots|(?:your |the |final )*answer|\\(?:text|cdot)\s*\{[\s.…]*\}", re.IGNORECASE
)
_BARE = r"\\boxed\s*(-?\d[\d,]*(?:\.\d+)?(?:/\d+)?|[a-zA-Z](?![a-zA-Z]))"
_BARE_BOX, _ENDED_BARE_BOX = re.compile(_BARE), re.compile(_BARE + r"(?=[$.,;]?\s)")
_LINE = re.compile(r"\banswer(?:\s+is)?\s*:\s*([^\n]+)", re.IGNORECASE)
_SENTENCE = re.compile(
    r"\banswer\**(?:\s+to\s[^\n:.]{1,60}?)?\s+(?:is|equals|must be|would be)\s*:?\s+([^\n]+)", re.IGNORECASE
)
_TAG = re.compile(r"<answer>\s*((?:(?!</?answer>).){1,2000}?)\s*</answer>|^####\s*([^\n]+)", re.DOTALL | re.MULTILINE)
_SENTENCE_WORDS = re.compile(r"\b(?:is|are|equals|have|get)\b")
_END = re.compile(
    r"\.\**(?:\s|$)|。|,?\s+(?:because|since|as|so|which|where|when|for|not|rather than|instead of)\s", re.IGNORECASE
)
_ASIDE = re.compile(
    r"^(?:therefore|thus|hence|simply|just|exactly)\s+|\s*\((?!mod)(?=[^()]*[a-z]{3})[a-z0-9 ]{4,40}\)$", re.IGNORECASE
)
_PROSE = re.compile(r"not\b|(?:[^\W\d]+[\s,]+){2,}[^\d\\$]*$", re.IGNORECASE)  # the answer is easy to see
_THEN = re.compile(r"\\(?:implies|Rightarrow|therefore|Longrightarrow)(?![a-zA-Z])|⇒")
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# A sign belongs to the number unless something stands before it: "3-5" ends in 5, "x=-5" in -5.
_NUMBER = re.compile(r"(?<![\w.)\]])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?")
_FRACTION = re.compile(r"-?\\[dt]?frac\{\d{1,30}\}\{\d{1,30}\}")
_CHOICE = re.compile(r"\b(?:option|choice)\**(?:\s+is)?\s*:?\s*(\**\(?[A-J]\)?)(?![a-zA-Z])", re.IGNORECASE)
_GAP = r"(?:\s|\$|\*\*|~|&|\\[,;:! ()\[\]])*"
_AND = (
    r"(?:,|;|/|或|和|\\q?quad(?![a-zA-Z])|(?<![a-zA-Z])(?:and|or|as well as)(?![a-zA-Z])"
    r"|\\text\s*\{[\s,]*(?:and|or|as well as)\s*\})"
)
_NAMED = r"(?P<name>[a-zA-Z](?:_?\w|_\{\w\})?)\s*=\s*(?:\\[,; ]\s*)?"
_JOINED = re.compile(rf"{_GAP}(?:{_AND}{_GAP})+(?:{_NAMED})?\\(?:boxed|fbox)\s*\{{$")
_FIRST_NAME = re.compile(rf"(?<![a-zA-Z\\]){_NAMED}$")
# A line that is nothing but a formula or the letter of a choice: no words, no signs of LaTeX's around it.
_BARE_LINE = re.compile(
    r"(?=.*[\da-zA-Z])(?:\\[a-zA-Z]+|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[^a-zA-Z\\$#<>:*぀-ヿ一-鿿가-힣：])+"
)
_BULLET = re.compile(r"^\s*(?:[-*•∴⇒→]\s+)?")
_SCIENTIFIC = re.compile(r"[-+−]?\d[\d,.]*\s*(?:[×*·]|\\times|\\cdot)\s*10\s*\^\s*(?:\{\s*[-−]?\d+\s*\}|[-−]?\d+)")
_MORE_OF_NUMBER = re.compile(r"\s*(?:π|√\s*\d+|\\?%)|\^(?:\{\d+\}|\d+)")
_ROOT, _ROOM_OF_ROOT = re.compile(r"[-−]?\d*\s*\\sqrt\s*(?:\[\d+\])?\s*\{?\s*$"), 32
_NOT = re.compile(r"(?:\bnot|nicht|pas|no es|não é|non è|не|不是|不等于)\s*\S?$", re.IGNORECASE)
_TAIL, _MARGIN, _MAX_FORMULA, _MAX_WORDS, _MAX_LINE, _MAX_BOXES = 256, 8, 2048, 16, 80, 16


def find_answer(
    response: str, form: AnswerForm, *, is_cut: bool = False, is_word: bool = False
) -> tuple[str | None, bool]:
    """The stated answer (None if there is none), and whether a box, a tag or the word "answer" marks it.

    Args:
        is_cut: the response was stopped at its length limit. Only a closed box or an ended line counts then: a number
            may be on the way to an answer, or half of one.
        is_word: yes, no, true or false is asked for, which a response may say as its first or last word.
    """
    if form in (AnswerForm.auto, AnswerForm.boxed):
        boxed = last_boxed(response, is_cut=is_cut)
        if boxed is not None or (is_cut and "\\boxed" in response):
            return boxed, boxed is not None
    if form is AnswerForm.line:
        found = next(_answers(response, [_LINE]), None)
        if found is None or (is_cut and found.end() == len(response)):
            return None, False
        return found[1].strip(" *\t\r"), True  # without Markdown's asterisks
    if form is AnswerForm.auto:
        said = answer_said(response, is_cut=is_cut)
        if said is not None:
            return said, True
    if is_cut or form is AnswerForm.boxed:
        return None, False
    if form is AnswerForm.number:
        return last_number(response), False
    word = word_said(response) if is_word else None
    return word or last_value(without_notes(response)), False


def last_boxed(text: str, *, is_cut: bool = False) -> str | None:
    r"""The content of the last closed `\boxed{...}`; None if there is none, or if `is_cut` left it open.

    Boxes that a comma or an "and" joins are one list. `\boxed {5}`, `\boxed 5` and `\fbox{5}` are boxes too.
    """
    start = text.rfind("\\boxed")
    others = max(text.rfind("\\fbox", max(0, start)), text.rfind("\\framebox", max(0, start)))
    if others >= 0 or (start >= 0 and not text.startswith(_BOX, start)):
        text = _OTHER_BOX.sub(r"\\boxed{", text)
        text = (_ENDED_BARE_BOX if is_cut else _BARE_BOX).sub(r"\\boxed{\1}", text)
        start = text.rfind(_BOX)
    if start < 0:
        return None
    end = _closing(text, start + len(_BOX))
    if end < 0:
        return None if is_cut else _last_closed(text[:start])
    last = start
    for _ in range(_MAX_BOXES):  # an empty box states nothing
        if not _NO_ANSWER.fullmatch(text, start + len(_BOX), end):
            return _joined(text, start, end)
        if (start := text.rfind(_BOX, 0, start)) < 0 or (end := _closing(text, start + len(_BOX))) < 0:
            break
    return text[last + len(_BOX) : _closing(text, last + len(_BOX))]


def _joined(text: str, start: int, end: int) -> str:
    r"""The box at `start` and those before it joined to it: \boxed{2} and \boxed{3}; with names if these differ."""
    begin = start + len(_BOX)
    boxes, names = [text[begin:end]], list[str]()
    while len(boxes) < _MAX_BOXES and (start := text.rfind(_BOX, 0, start)) >= 0:
        end = _closing(text, start + len(_BOX))
        found = _JOINED.fullmatch(text, end + 1, begin) if end >= 0 else None
        if not found:
            break
        begin = start + len(_BOX)
        boxes.insert(0, text[begin:end])
        names.insert(0, found["name"] or "")
    first = _FIRST_NAME.search(text, max(0, begin - len(_BOX) - _MAX_WORDS), begin - len(_BOX))
    names.insert(0, first["name"] if first else "")
    if len(boxes) == len(set(names)) > 1 and all(names):
        boxes = [f"{name}={box}" for name, box in zip(names, boxes, strict=True)]
    return ", ".join(boxes)


def _closing(text: str, begin: int) -> int:
    """Position of the brace that closes the one before `begin`; -1 if there is none."""
    depth = 1
    for brace in _BRACE.finditer(text, begin):
        depth += {"{": 1, _BOX: 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return -1


def _last_closed(text: str) -> str | None:
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


def answer_said(text: str, *, is_cut: bool = False) -> str | None:
    """Answer behind "Answer:", "the answer is" or "####", or between <answer> tags, whichever is said last."""
    mark, tag = max(text.rfind("</answer>"), text.rfind("####")), None
    if mark >= 0:
        for tag in _TAG.finditer(text, max(0, mark - _MAX_FORMULA)):  # noqa: B007
            pass
    other = said_otherwise(text)
    for found in _answers(text, [_LINE, _SENTENCE, _CHOICE]):
        if (tag and found.start() <= tag.end()) or (other and found.start() <= other[0]):
            break
        if is_cut and found.end() == len(text):
            return None
        value = found[1].strip("*") if found.re is _CHOICE else _value_in(found[1])
        if found.re is _LINE or not _PROSE.match(value):
            return value
    if other and (tag is None or tag.end() <= other[0]):
        return None if is_cut and other[1] == len(text) else _value_in(other[2])
    if tag is None or (tag[1] is None and is_cut and tag.end() == len(text)):
        return None
    inner = tag[1] or tag[2].strip()
    is_sentence = _SENTENCE_WORDS.search(inner) and "\\boxed" not in inner
    return (is_sentence and last_value(inner)) or inner


def _answers(text: str, patterns: list[re.Pattern[str]]) -> Iterator[re.Match[str]]:
    """Matches of the patterns at the word "answer", or what stands for it, from the end."""
    lower = text.replace("İ", "I").lower()  # the one letter that becomes two in lower case: positions must stay
    words = ("answer", "option", "choice") if _CHOICE in patterns else ("answer",)
    starts = {word: lower.rfind(word) for word in words}
    while (start := max(starts.values())) >= 0:
        for pattern in patterns:
            if found := pattern.match(text, start):
                yield found
                break
        word = max(starts, key=lambda word: starts[word])
        starts[word] = lower.rfind(word, 0, start + len(word) - 1)


def _value_in(sentence: str) -> str:
    """The value that begins a sentence: all up to its end, or its formula alone if the rest is prose."""
    inside = [range(formula.start() + 1, formula.end()) for formula in _FORMULA.finditer(sentence)]
    ends = (found for found in _END.finditer(sentence) if not any(found.start() in each for each in inside))
    ending = next(ends, None)
    value = _ASIDE.sub("", (sentence[: ending.start()] if ending else sentence).strip(" *\t\r"))
    formulas = list(_FORMULA.finditer(value))
    if formulas and any(char.isalpha() for char in value[: formulas[0].start()]):
        value = value[formulas[0].start() :]  # it is given by $x=5$
    if len(formulas) == 1 and len(value) - len(formulas[0][0]) > _MAX_WORDS:
        return formulas[0][0]
    return value


def last_value(text: str) -> str | None:
    """The last line if it is nothing else, else the last formula, or the last number if that comes later."""
    if (line := _bare_line(text)) is not None:
        return line
    tail = text[-_MAX_FORMULA:]
    value = None
    if "$" in tail or "\\(" in tail or "\\[" in tail:
        for value in _FORMULA.finditer(tail):  # noqa: B007
            pass
    start = tail.rfind("\\", 0, tail.rfind("frac{") + 1)
    if start > 0 and tail[start - 1] == "-":
        start -= 1
    fraction = _FRACTION.match(tail, start) if start >= 0 else None
    for found in (fraction, *_SCIENTIFIC.finditer(tail, max(0, len(tail) - _TAIL))):
        if found and (value is None or found.end() > value.end()):
            value = found
    number = last_number(text)
    start = -1 if number is None else tail.rfind(number)
    if number is not None and start < 0:
        at = text.rfind(number)
        return None if _ROOT.search(text, max(0, at - _ROOM_OF_ROOT), at) else number
    if number is not None and (value is None or start >= value.end()):
        more = _MORE_OF_NUMBER.match(tail, start + len(number))
        if root := _ROOT.search(tail, max(0, start - _ROOM_OF_ROOT), start):  # 3\sqrt{2} is not 2
            return f"{root[0]}{number}{'}' * root[0].count('{')}"
        return None if _NOT.search(tail, max(0, start - _MARGIN), start) else number + (more[0] if more else "")
    if value is None:
        return None
    return _THEN.split(next((group for group in value.groups() if group), value[0]))[-1].strip()


def _bare_line(text: str) -> str | None:
    end = len(text.rstrip())
    line = text[text.rfind("\n", 0, end) + 1 : end] if end else ""
    line = _BULLET.sub("", line.strip(" \t*`").removesuffix("."), count=1)
    return line if len(line) <= _MAX_LINE and _BARE_LINE.fullmatch(line) else None


def last_number(text: str) -> str | None:
    """The last integer, decimal or fraction in the text."""
    for begin in (max(0, len(text) - _TAIL), 0):
        number = None
        for number in _NUMBER.finditer(text, begin):  # noqa: B007
            pass
        if number and (begin == 0 or number.start() > begin + _MARGIN):  # else it may be the end of a longer one
            return number[0]
    return None


_LIST_OF_ONE = re.compile(r"\[\s*(['\"])((?:(?!\1).)*)\1\s*\]", re.DOTALL)
_WHOLE_TAG = re.compile(r".*<answer>((?:(?!</?answer>).)*)</answer>\s*", re.DOTALL)


def label_text(label: Any) -> str | None:
    """A label as text, None if it is neither a non-empty string nor a finite number."""
    if isinstance(label, bool) or not isinstance(label, str | int | float | Decimal):
        return None
    if isinstance(label, float | Decimal):
        number = label if isinstance(label, Decimal) else Decimal(repr(float(label)))
        return format(number, "f") if math.isfinite(label) else None  # 1e-05 is 0.00001
    return _stated(str(label).strip()) or None


def _stated(label: str) -> str:
    """Answer in a label that says more: GSM8K's published answer, a whole solution, a list of one as text."""
    if found := _LIST_OF_ONE.fullmatch(label):
        label = found[2].strip()
    if "####" in label:
        label = label.rpartition("####")[2].strip()
    if tag := _WHOLE_TAG.fullmatch(label):
        label = tag[1].strip()
    if "\\boxed{" in label and not label.startswith("\\boxed"):
        label = last_boxed(label) or label
    return label
