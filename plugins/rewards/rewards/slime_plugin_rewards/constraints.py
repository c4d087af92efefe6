"""Reward `constraints`: whether a response keeps what its prompt asks of its form, in the columns that IFEval has."""

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

_WORD, _SENTENCE = re.compile(r"\w+(?:['’-]\w+)*"), re.compile(r"[^.!?]+[.!?]+(?=\s|$)|[^.!?]+$")
_BULLET, _TITLE = re.compile(r"^\s*[*-]\s+\S", re.MULTILINE), re.compile(r"<<[^\n]+>>")
_PLACEHOLDER, _HIGHLIGHT = re.compile(r"\[[^\[\]]+\]"), re.compile(r"\*[^\n*]+\*")


@dataclass
class ConstraintsReward:
    """The share of the constraints that the response keeps, or 1 for all and 0 otherwise. Thinking is left
    out.

    Parts: `kept` (the share).
    """

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
        if unknown := [kind for kind in kinds if kind not in CHECKS]:
            return Verdict.invalid(f"row {row}: no constraint '{unknown[0]}'. {did_you_mean(str(unknown[0]), CHECKS)}")
        text = said(sample).strip()
        try:
            kept = [bool(text) and CHECKS[kind](text, given or {}) for kind, given in zip(kinds, keywords, strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            return Verdict.invalid(f"row {row}: '{self.keywords_column}' does not fit its constraint: {error!r:.80}")
        share = sum(kept) / len(kept)
        return Verdict.of(float(share == 1) if self.strict else share, kept=share)


def _compared(count: int, given: Keywords, number: str) -> bool:
    """IFEval says `less than` and `at least`."""
    relation, wanted = given.get("relation") or "at least", int(given[number])
    if relation not in ("less than", "at least"):
        raise ValueError(f"relation {relation!r}")
    return count < wanted if relation == "less than" else count >= wanted


def _times(text: str, word: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def _paragraphs(text: str, separator: str) -> int:
    return len([part for part in re.split(separator, text) if part.strip()])


def _is_json(text: str) -> bool:
    inside = re.sub(r"^```(?:json)?\s*|\s*```$", "", text.strip(), flags=re.IGNORECASE)
    try:
        json.loads(inside)
    except ValueError:
        return False
    return True


def _ends_with(text: str, end: str) -> bool:
    return text.strip().strip('"').lower().endswith(end.strip().lower())


CHECKS: Mapping[str, Check] = {
    "length_constraints:number_words": lambda text, given: _compared(len(_WORD.findall(text)), given, "num_words"),
    "length_constraints:number_sentences": lambda text, given: _compared(
        len(_SENTENCE.findall(text)), given, "num_sentences"
    ),
    "length_constraints:number_paragraphs": lambda text, given: (
        _paragraphs(text, r"\s?\*\*\*\s?") == int(given["num_paragraphs"])
    ),
    "keywords:existence": lambda text, given: all(_times(text, word) for word in given["keywords"]),
    "keywords:forbidden_words": lambda text, given: not any(_times(text, word) for word in given["forbidden_words"]),
    "keywords:frequency": lambda text, given: _compared(_times(text, given["keyword"]), given, "frequency"),
    "keywords:letter_frequency": lambda text, given: _compared(
        text.lower().count(given["letter"].lower()),
        {"relation": given.get("let_relation"), "let_frequency": given["let_frequency"]},
        "let_frequency",
    ),
    "change_case:english_lowercase": lambda text, given: text == text.lower(),
    "change_case:english_capital": lambda text, given: text == text.upper(),
    "change_case:capital_word_frequency": lambda text, given: _compared(
        sum(word.isupper() for word in _WORD.findall(text)),
        {"relation": given.get("capital_relation"), "frequency": given["capital_frequency"]},
        "frequency",
    ),
    "punctuation:no_comma": lambda text, given: "," not in text,
    "startend:end_checker": lambda text, given: _ends_with(text, given["end_phrase"]),
    "startend:quotation": lambda text, given: len(text) > 1 and text[0] == text[-1] == '"',
    "detectable_format:number_bullet_lists": lambda text, given: (
        len(_BULLET.findall(text)) == int(given["num_bullets"])
    ),
    "detectable_format:number_highlighted_sections": lambda text, given: (
        len(_HIGHLIGHT.findall(text)) >= int(given["num_highlights"])
    ),
    "detectable_format:title": lambda text, given: bool(_TITLE.search(text)),
    "detectable_format:json_format": lambda text, given: _is_json(text),
    "detectable_content:number_placeholders": lambda text, given: (
        len(_PLACEHOLDER.findall(text)) >= int(given["num_placeholders"])
    ),
    "detectable_content:postscript": lambda text, given: given["postscript_marker"].lower() in text.lower(),
}
"""Kind -> whether a text keeps it, under the names and with the keywords of IFEval."""
