"""Reward `f1`: how many words a response and its label have in common."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from slime.thinking import said
from slime.types import Sample, Verdict

_WORD = re.compile(r"\w+")
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_ARTICLES = {"a", "an", "the"}


@dataclass
class F1Reward:
    """The harmonic mean of precision and recall over words, as for SQuAD: small letters, no articles, no punctuation.
    Of several labels the best counts; of a response with `<answer>` the last one is read.

    Parts: `exact` (1 if the words are the same in the same order).
    """

    def score(self, sample: Sample) -> Verdict:
        labels = texts(sample.prompt.label)
        if not labels:
            return Verdict.invalid(f"row {sample.prompt.id}: label {sample.prompt.label!r:.80} is no text, nor several")
        response = said(sample)
        words = _words([response, *_ANSWER.findall(response)][-1])
        wanted = [_words(label) for label in labels]
        return Verdict.of(max(f1(words, label) for label in wanted), exact=float(words in wanted))


def texts(label: Any) -> list[str]:
    """The texts of a label that is one, or several; empty if it is neither."""
    several = label if isinstance(label, list | tuple) else [label]
    return list(several) if all(isinstance(each, str) and each.strip() for each in several) else []


def f1(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _ARTICLES]
