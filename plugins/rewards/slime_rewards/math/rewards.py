"""The rewards: all judge what is said behind thinking, and all give 1 for a right answer."""

from __future__ import annotations

from dataclasses import dataclass

from slime.thinking import divided, said
from slime.types import Sample, Status, Verdict
from slime_rewards.math.options import AnswerForm


@dataclass
class MathReward:
    """1 where the stated answer equals the label, else `wrong_value`.

    A response that was cut off at its length limit earns only by a complete answer, see `find_answer`.
    Parts: `correct` (0 or 1), `format` (1 if the answer stands in a box or is called the answer).
    """

    answer: AnswerForm = AnswerForm.auto
    """Where the answer is read: auto, boxed, line or number."""
    wrong_value: float = 0.0
    """Value of a wrong or missing answer; a right one is 1."""

    def score(self, sample: Sample) -> Verdict:
        return _verdict(sample, said(sample), AnswerForm(self.answer), self.wrong_value)


@dataclass
class DeepscalerReward:
    """1 where the box behind thinking that was ended holds the label, else `wrong_value`. Parts as of `MathReward`."""

    wrong_value: float = 0.0
    """Value of a wrong answer, of one that is in no box, and of a response that does not end its thinking."""

    def score(self, sample: Sample) -> Verdict:
        thinking, answer = divided(sample.response)
        return _verdict(sample, answer if thinking else "", AnswerForm.boxed, self.wrong_value)


@dataclass
class DapoReward:
    """1 where the last line "Answer: ..." has the label, else `wrong_value`. Parts as of `MathReward`."""

    wrong_value: float = -1.0
    """Value of a wrong or missing answer; a right one is 1."""

    def score(self, sample: Sample) -> Verdict:
        return _verdict(sample, said(sample), AnswerForm.line, self.wrong_value)


@dataclass
class ArithmeticReward:
    """1 where the text after the last "=" (the whole response if it has none) is the label, else `wrong_value`."""

    wrong_value: float = 0.0
    """Value of a wrong answer; a right one is 1."""

    def score(self, sample: Sample) -> Verdict:
        from slime_rewards.math.answers import label_text  # here, because importing a plugin is to be quick

        if (label := label_text(sample.prompt.label)) is None:
            return _no_label(sample)
        return Verdict.of(1.0 if said(sample).rpartition("=")[2].strip() == label else self.wrong_value)


def _verdict(sample: Sample, text: str, form: AnswerForm, wrong_value: float) -> Verdict:
    from slime_rewards.math.answers import find_answer, label_text
    from slime_rewards.math.compare import same
    from slime_rewards.math.wordings import is_word

    if (label := label_text(sample.prompt.label)) is None:
        return _no_label(sample)
    is_cut = sample.status is Status.TRUNCATED
    answer, is_marked = find_answer(text, form, is_cut=is_cut, is_word=is_word(label))
    is_correct = answer is not None and same(answer, label)
    return Verdict.of(1.0 if is_correct else wrong_value, correct=float(is_correct), format=float(is_marked))


def _no_label(sample: Sample) -> Verdict:
    label = sample.prompt.label
    return Verdict.invalid(
        f"row {sample.prompt.id}: label {label!r:.80} is a {type(label).__name__}, not a finite number or text"
    )
