"""The rewards: all judge what is said behind thinking, and all give 1 for a right answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.contracts import RewardModel
from slime.thinking import divided, said
from slime.types import Sample, Status, Verdict
from slime_rewards.math.answers import find_answer
from slime_rewards.math.compare import same
from slime_rewards.math.data.arithmetic import final_number
from slime_rewards.math.options import AnswerForm, ArithmeticOptions, DapoOptions, DeepscalerOptions, MathOptions
from slime_rewards.math.wanted import label_text
from slime_rewards.math.wordings import is_word


class MathReward:
    """1 where the stated answer equals the label, else `wrong_value`.

    A response that was cut off at its length limit earns only by a complete answer, see `find_answer`.
    Parts: `correct` (0 or 1), `format` (1 if the answer stands in a box or is called the answer).
    """

    def __init__(self, options: MathOptions) -> None:
        self._form, self._wrong_value = AnswerForm(options.answer), options.wrong_value

    def score(self, sample: Sample) -> Verdict:
        label = label_text(sample.prompt.label)
        if label is None:
            return _no_label(sample)
        is_cut = sample.status is Status.TRUNCATED
        answer, is_marked = find_answer(self._read(sample), self._form, is_cut=is_cut, is_word=is_word(label))
        is_correct = answer is not None and same(answer, label)
        value = 1.0 if is_correct else self._wrong_value
        return Verdict.of(value, correct=float(is_correct), format=float(is_marked))

    def _read(self, sample: Sample) -> str:
        """The text in which the answer is looked for."""
        return said(sample)


class DeepscalerReward(MathReward):
    """1 where the box behind thinking that was ended holds the label, else `wrong_value`. Parts as of `MathReward`."""

    def __init__(self, options: DeepscalerOptions) -> None:
        super().__init__(MathOptions(AnswerForm.boxed, options.wrong_value))

    def _read(self, sample: Sample) -> str:
        thinking, answer = divided(sample.response)
        return answer if thinking else ""


class DapoReward(MathReward):
    """1 where the last line "Answer: ..." has the label, else `wrong_value`. Parts as of `MathReward`."""

    def __init__(self, options: DapoOptions) -> None:
        super().__init__(MathOptions(AnswerForm.line, options.wrong_value))


class ArithmeticReward:
    """1 where the text after the last "=" (the whole response if it has none) is the label, else `wrong_value`."""

    def __init__(self, options: ArithmeticOptions) -> None:
        self._wrong_value = options.wrong_value

    def score(self, sample: Sample) -> Verdict:
        label = label_text(sample.prompt.label)
        if label is None:
            return _no_label(sample)
        return Verdict.of(1.0 if final_number(said(sample)) == label else self._wrong_value)


def _no_label(sample: Sample) -> Verdict:
    label = sample.prompt.label
    return Verdict.invalid(
        f"row {sample.prompt.id}: label {label!r:.80} is a {type(label).__name__}, not a finite number or text"
    )


REWARDS: Mapping[str, Callable[..., RewardModel]] = {
    "math": MathReward,
    "deepscaler": DeepscalerReward,
    "dapo": DapoReward,
    "arithmetic": ArithmeticReward,
}
