"""Answers in words: one wording for what is said in several, and the letter of a choice."""

from __future__ import annotations

import re

_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {word: value for value, word in enumerate(_TO_NINETEEN.split())}
NUMBER_WORDS |= {ten: 10 * value for value, ten in enumerate(_TENS.split(), 2)}
NUMBER_WORDS |= {
    f"{ten}-{one}": NUMBER_WORDS[ten] + NUMBER_WORDS[one] for ten in _TENS.split() for one in _TO_NINETEEN.split()[1:10]
}
_SAME = {
    "infinity": "∞",
    "positive infinity": "∞",
    "plus infinity": "∞",
    "negative infinity": "-∞",
    "minus infinity": "-∞",
    "empty set": "∅",
    **dict.fromkeys(
        ("real numbers", "all real numbers", "all reals", "set of real numbers", "set of all real numbers", "reals"),
        r"\mathbb {R}",
    ),
    **dict.fromkeys(("dne", "doesn't exist", "limit does not exist"), "does not exist"),
    **dict.fromkeys(("infinitely many solutions", "infinite solutions"), "infinitely many"),
}
_WORDS = re.compile(r"(?:[Aa] )?[a-zA-Z][a-z]+(?:[ '-][a-zA-Z][a-z]*)*", re.ASCII)
_OF_ANY_CASE = ("yes", "no", "true", "false", "none", "dne")
_LIST = re.compile(r" (?:and|or) ")
_MIN_CHARS, _MAX_CHARS = 4, 80  # shorter ones may be products of letters, longer ones are no answer in words
_START = re.compile(r"^(?:there (?:is|are|exists?) )?(?:(?:a|an|the) )?")
_SOLUTIONS = re.compile(r"^no ((?:[a-z]+ )?)(solution|root)s( exists?)?$")
_LETTER = r"(?:\(\s*([A-J])\s*\)|([A-J]))"
_TEXT = re.compile(r"\\text\s*\{\s*([^{}]*?)\s*\}")
_CHOICE = re.compile(rf"{_LETTER}\s*[.):]?")
_LABELLED_CHOICE = re.compile(
    rf"(?:(?i:option|choice|answer)\s+{_LETTER}\s*(?:[.):]|$)|\(\s*([A-J])\s*\)(?=\s*\S)|([A-J])\s*[.):](?=\s*\S))"
)

_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|the|final|correct|required|desired|our|only|possible|real|integer|maximum|minimum"
    r"|largest|smallest|greatest|least)[\s,]+)*"
    r"(?:answers?|maximum|minimum|results?|solutions?|values?(?: of (?:\$?[a-z]\$?|the expression))?)\s*"
    r"(?:(?:is|are|equals?)(?![a-z])\s*:?|[:=])\s*"
    r"|(?:最终)?(?:答案|结果|解)\s*(?:是|为|[:：])[:：]?\s*|####\s*|either(?![a-z])\s*",
    re.IGNORECASE,
)
_MARKED_LEAD = re.compile(r"\\text\s*\{\s*([^{}]*?)\s*\}")


def said(text: str) -> str:
    """Answer behind words that call it the answer, as `6` of `The answer is 6`."""
    marked = _MARKED_LEAD.match(text)
    lead = _LEAD.match(marked[1] if marked else text)
    if lead is None or (marked and marked.end() == len(text) and lead.end() == len(marked[1])):
        return text
    rest = (marked[1][lead.end() :] + text[marked.end() :] if marked else text[lead.end() :]).strip()
    return rest or text


def phrase(text: str) -> str:
    """`text` in one wording if it is in words alone, else as it is; a number in words becomes its digits."""
    words = " ".join(text.split()).removesuffix(".")
    if words.lower() in _OF_ANY_CASE or words in NUMBER_WORDS:
        words = words.lower()
    elif not _MIN_CHARS <= len(words) <= _MAX_CHARS or not _WORDS.fullmatch(words) or _LIST.search(words):
        return text
    words = words.lower()
    words = _START.sub("", words) or words
    words = _SOLUTIONS.sub(r"no \1\2", words)
    return str(NUMBER_WORDS[words]) if words in NUMBER_WORDS else _SAME.get(words, words)


def choice(text: str) -> str:
    """The letter of a choice that is all of `text`, as `B` or `(B)`; empty if it is none."""
    found = _CHOICE.fullmatch(_TEXT.sub(r"\1", text).strip())
    return (found[1] or found[2]) if found else ""


def labelled_choice(text: str) -> str:
    """The letter of a choice before what it stands for, as in `(B) 12`, `B. 12` and `Option B`; empty if it is none."""
    found = _LABELLED_CHOICE.match(_TEXT.sub(r" \1 ", text).strip())
    return next((group for group in found.groups() if group), "") if found else ""
