"""Rewards for short texts: `f1`, the words that a response and its label share, and `gpqa`, the letter of a choice."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from slime.thinking import said
from slime.types import Sample, Status, Verdict
from slime_rewards.math.options import AnswerForm

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


_LETTERS = "ABCDEFGHIJ"


@dataclass
class GpqaReward:
    """1 where the answer is the choice that the label names, by its letter, or by its text where a column holds the
    choices; else `wrong_value`.

    Parts: `correct` (0 or 1), `format` (1 if the answer stands in a box or is called the answer).
    """

    choices_column: str = "choices"
    """Column with the texts of the choices in their order; a row need not have it."""
    wrong_value: float = 0.0
    """Value of a wrong or missing answer; a right one is 1."""

    def score(self, sample: Sample) -> Verdict:
        from slime_rewards.math.answers import find_answer  # here, because importing a plugin is to be quick
        from slime_rewards.math.compare import same

        choices = sample.prompt.metadata.get(self.choices_column)
        texts = [str(choice) for choice in choices] if isinstance(choices, list | tuple) else []
        letter = _letter(sample.prompt.label, texts)
        if letter is None:
            what = f"label {sample.prompt.label!r:.80} is neither the letter nor the text of a choice"
            return Verdict.invalid(f"row {sample.prompt.id}: {what}")
        answer, marked = find_answer(said(sample), AnswerForm.auto, is_cut=sample.status is Status.TRUNCATED)
        position = _LETTERS.index(letter)
        text = texts[position] if position < len(texts) else None
        correct = answer is not None and (same(answer, letter) or (text is not None and same(answer, text)))
        return Verdict.of(1.0 if correct else self.wrong_value, correct=float(correct), format=float(marked))


def _letter(label: object, choices: list[str]) -> str | None:
    """The letter of a label that is one, a number counted from 0, or the text of a choice."""
    if isinstance(label, str) and len(text := label.strip(" ().").upper()) == 1 and text in _LETTERS:
        return text
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(_LETTERS):
        return _LETTERS[label]
    return _LETTERS[choices.index(label)] if label in choices[: len(_LETTERS)] and isinstance(label, str) else None
