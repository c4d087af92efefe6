"""Reward `constraints`: the 25 kinds of IFEval (Zhou et al. 2023), under its names, with its keywords and way to count.

Words are runs of letters and digits, so `well-known` is two. A keyword is a regular expression that is found anywhere,
`red` in `redder`; a forbidden word is one between the borders of words. Sentences and capital words are counted without
the tokenizers of NLTK that IFEval takes, by rules of our own, which differ on abbreviations that these do not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slime.errors import did_you_mean
from slime.thinking import said
from slime.types import Sample, Verdict

Keywords = Mapping[str, Any]
Check = Callable[[str, Keywords], bool]

_WORD = re.compile(r"\w+")
_CAPITALS = re.compile(r"\w+(?:[.'’-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]")
_ABBREVIATED = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|st|jr|sr|vs|etc|e\.g|i\.e|cf|fig|inc|ltd|co|corp|approx|dept|est|gen|gov|rev|vol)"
    r"|(?:^|[\s(])[a-z]|(?:\b[a-z]\.)+[a-z])\.$",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^\s*\*[^*].*$|^\s*-.*$", re.MULTILINE)
_TITLE, _PLACEHOLDER = re.compile(r"<<([^\n]+)>>"), re.compile(r"\[.*?\]")
_HIGHLIGHT, _STRONG = re.compile(r"\*[^\n*]*\*"), re.compile(r"\*\*[^\n*]*\*\*")
_FENCE = re.compile(r"\A```(?:json|Json|JSON)?|```\Z")
_POSTSCRIPTS = {"P.S.": r"\s*p\.\s?s\.", "P.P.S": r"\s*p\.\s?p\.\s?s"}
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_TWO = "******"
_BORDERS, _FEW_WORDS = ".,?!'\"", 6


class NoDetector(Exception):
    """There is no library that tells languages."""


def compared(count: int, relation: Any, wanted: Any) -> bool:
    """IFEval says `less than` and `at least`; the latter where nothing is said."""
    if relation not in (None, "less than", "at least"):
        raise ValueError(f"relation {relation!r}")
    return count < int(wanted) if relation == "less than" else count >= int(wanted)


def _counted(count: Callable[[str, Keywords], int], wanted: str, relation: str = "relation") -> Check:
    """A check of a count, whose keywords have the number and the relation under these names."""
    return lambda text, given: compared(count(text, given), given.get(relation), given[wanted])


def language(text: str) -> str | None:
    """The language of a text as ISO 639-1 has it, `en`; None where it cannot be told, as of numbers alone.

    Raises:
        NoDetector: langdetect is not installed.
    """
    try:
        import langdetect
    except ImportError as error:
        raise NoDetector from error
    langdetect.DetectorFactory.seed = 0  # else it draws
    try:
        return str(langdetect.detect(text))
    except langdetect.LangDetectException:
        return None


def _is_english(text: str) -> bool:
    """English, or what nothing can tell, as a few words."""
    if len(_WORD.findall(text)) < _FEW_WORDS:
        return text.isascii()
    try:
        return language(text) in ("en", None)
    except NoDetector:
        return True


def sentences(text: str) -> int:
    count, start = 0, 0
    for found in _SENTENCE_END.finditer(text):
        if found[0][0] == "." and _ABBREVIATED.search(text[start : found.start() + 1]):
            continue
        count, start = count + bool(text[start : found.end()].strip()), found.end()
    return count + bool(text[start:].strip())


def _has_paragraphs(text: str, count: int) -> bool:
    """Count paragraphs between `***`; an empty one is none at the ends, and breaks the form elsewhere."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    if not all(part.strip() for part in parts[1:-1]):
        return False
    return sum(bool(part.strip()) for part in parts) == count


def _first_word(text: str, count: int, nth: int, word: str) -> bool:
    parts = text.split("\n\n")
    if sum(bool(part.strip()) for part in parts) != count or not 1 <= nth <= count:
        return False
    first = (parts[nth - 1].split() or [""])[0].lstrip("'").lstrip('"')
    return re.split(f"[{_BORDERS}]", first, maxsplit=1)[0].lower() == word.lower()


def _highlights(text: str) -> int:
    single = sum(bool(found.strip("*").strip()) for found in _HIGHLIGHT.findall(text))
    return single + sum(bool(found[2:-2].strip()) for found in _STRONG.findall(text))


def _is_json(text: str) -> bool:
    try:
        json.loads(_FENCE.sub("", text.strip()).strip())
    except (ValueError, RecursionError):
        return False
    return True


def _has_postscript(text: str, marker: str) -> bool:
    pattern = _POSTSCRIPTS.get(marker, rf"\s*{marker.lower()}")
    return bool(re.search(rf"{pattern}.*$", text.lower(), re.MULTILINE))


def _has_two(text: str) -> bool:
    parts = text.split(_TWO)
    said = [part.strip() for part in parts if part.strip()]
    return all(part.strip() for part in parts[1:-1]) and len(said) == 2 and said[0] != said[1]


def _times(text: str, word: str) -> int:
    return len(re.findall(word, text, re.IGNORECASE))


CHECKS: Mapping[str, Check] = {
    "keywords:existence": lambda text, given: all(_times(text, word) for word in _texts(given["keywords"])),
    "keywords:frequency": _counted(lambda text, given: _times(text, given["keyword"]), "frequency"),
    "keywords:forbidden_words": lambda text, given: (
        not any(_times(text, rf"\b{word}\b") for word in _texts(given["forbidden_words"]))
    ),
    "keywords:letter_frequency": _counted(
        lambda text, given: text.lower().count(given["letter"].lower()), "let_frequency", "let_relation"
    ),
    "language:response_language": lambda text, given: language(text) in (given["language"], None),
    "length_constraints:number_sentences": _counted(lambda text, given: sentences(text), "num_sentences"),
    "length_constraints:number_paragraphs": lambda text, given: _has_paragraphs(text, int(given["num_paragraphs"])),
    "length_constraints:number_words": _counted(lambda text, given: len(_WORD.findall(text)), "num_words"),
    "length_constraints:nth_paragraph_first_word": lambda text, given: _first_word(
        text, int(given["num_paragraphs"]), int(given["nth_paragraph"]), given["first_word"]
    ),
    "detectable_content:number_placeholders": _counted(
        lambda text, given: len(_PLACEHOLDER.findall(text)), "num_placeholders"
    ),
    "detectable_content:postscript": lambda text, given: _has_postscript(text, given["postscript_marker"]),
    "detectable_format:number_bullet_lists": lambda text, given: (
        len(_BULLET.findall(text)) == int(given["num_bullets"])
    ),
    "detectable_format:constrained_response": lambda text, given: any(option in text for option in _OPTIONS),
    "detectable_format:number_highlighted_sections": _counted(lambda text, given: _highlights(text), "num_highlights"),
    "detectable_format:multiple_sections": _counted(
        lambda text, given: len(re.split(rf"\s?{given['section_spliter']}\s?\d+\s?", text)) - 1, "num_sections"
    ),
    "detectable_format:json_format": lambda text, given: _is_json(text),
    "detectable_format:title": lambda text, given: any(title.strip("<>").strip() for title in _TITLE.findall(text)),
    "combination:two_responses": lambda text, given: _has_two(text),
    "combination:repeat_prompt": lambda text, given: text.lower().startswith(given["prompt_to_repeat"].strip().lower()),
    "startend:end_checker": lambda text, given: text.strip('"').lower().endswith(given["end_phrase"].strip().lower()),
    "startend:quotation": lambda text, given: len(text) > 1 and text[0] == text[-1] == '"',
    "change_case:capital_word_frequency": _counted(
        lambda text, given: sum(map(str.isupper, _CAPITALS.findall(text))), "capital_frequency", "capital_relation"
    ),
    "change_case:english_capital": lambda text, given: text.isupper() and _is_english(text),
    "change_case:english_lowercase": lambda text, given: text.islower() and _is_english(text),
    "punctuation:no_comma": lambda text, given: "," not in text,
}
"""The check of each kind: whether a text keeps it."""


def _texts(given: Any) -> list[str]:
    """A list of texts; a text would be walked through by its letters."""
    if not isinstance(given, list) or not given or not all(isinstance(each, str) for each in given):
        raise ValueError(f"{given!r:.40} is no list of texts")
    return given


@dataclass
class ConstraintsReward:
    """The share of the constraints that the response keeps, or 1 for all and 0 otherwise. Parts: `kept` (the share)."""

    ids_column: str = "instruction_id_list"
    """Column with the kinds, such as `length_constraints:number_words`."""
    keywords_column: str = "kwargs"
    """Column with the keywords of each."""
    strict: bool = True
    """1 for all constraints and 0 otherwise; false gives the share."""

    def score(self, sample: Sample) -> Verdict:
        metadata, row = sample.prompt.metadata, sample.prompt.id
        kinds, keywords = metadata.get(self.ids_column), metadata.get(self.keywords_column)
        if not isinstance(kinds, list) or not isinstance(keywords, list) or len(kinds) != len(keywords) or not kinds:
            columns = f"'{self.ids_column}' and '{self.keywords_column}'"
            return Verdict.invalid(f"row {row}: {columns} are not two lists of one length")
        if unknown := [kind for kind in kinds if not isinstance(kind, str) or kind not in CHECKS]:
            return Verdict.invalid(f"row {row}: no constraint '{unknown[0]}'. {did_you_mean(str(unknown[0]), CHECKS)}")
        text = said(sample).strip()
        try:
            kept = [bool(text) and CHECKS[kind](text, given or {}) for kind, given in zip(kinds, keywords, strict=True)]
        except NoDetector:
            what = "a constraint on the language needs langdetect, which is not installed"
            return Verdict.invalid(f"row {row}: {what}. Install slime-rewards[languages].")
        except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
            return Verdict.invalid(f"row {row}: '{self.keywords_column}' does not fit its constraint: {error!r:.80}")
        share = sum(kept) / len(kept)
        return Verdict.of(float(share == 1) if self.strict else share, kept=share)
