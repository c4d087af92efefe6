"""The rewards of the tasks that the rewards of slime-rewards do not grade."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.thinking import said
from slime.types import Sample, Status, Verdict
from slime_rewards.math.options import AnswerForm

if TYPE_CHECKING:  # what scoring imports, `slime --help` does without
    from fractions import Fraction

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
MAX_EXPRESSION = 200
"""Characters of an expression that is still read; five numbers and their operators need fewer than fifty."""
OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass
class CountdownReward:
    """1 for an expression in the last `<answer>` that uses each number of the row once and gives its target.

    The row's label is `{"numbers": [...], "target": n}`. Allowed are `+ - * /`, brackets and exact division.
    Parts: `correct`, `format` (1 if there is an answer that can be read).
    """

    format_value: float = 0.1
    """Value of a wrong answer that can be read; one that cannot has 0."""

    def score(self, sample: Sample) -> Verdict:
        label = sample.prompt.label
        if not isinstance(label, dict) or not {"numbers", "target"} <= label.keys():
            return Verdict.invalid(f"row {sample.prompt.id}: label {label!r:.80} has no numbers and target")
        found = ANSWER.findall(said(sample))
        read = evaluate(found[-1]) if found else None
        if read is None:
            return Verdict.of(0.0, correct=0.0, format=0.0)
        value, used = read
        correct = used == Counter(label["numbers"]) and value == label["target"]
        return Verdict.of(1.0 if correct else self.format_value, correct=float(correct), format=1.0)


def evaluate(expression: str) -> tuple[Fraction, Counter[int]] | None:
    """The exact value of an expression and how often each number stands in it; None for anything else."""
    if len(expression) > MAX_EXPRESSION:
        return None
    from fractions import Fraction

    used = Counter[int]()

    def value_of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used[node.value] += 1
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
        raise ValueError("neither a number nor one of the four operations")

    try:
        return value_of(ast.parse(expression.strip(), mode="eval").body), used
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


@dataclass
class ReverseTextReward:
    """Likeness of the response and the reversed text: twice the matching characters over all (Ratcliff 1988)."""

    def score(self, sample: Sample) -> Verdict:
        label = sample.prompt.label
        if not isinstance(label, str) or not label:
            return Verdict.invalid(f"row {sample.prompt.id}: label {label!r:.80} is no text")
        from difflib import SequenceMatcher

        response = said(sample).strip()[: 4 * len(label)]
        likeness = SequenceMatcher(None, response, label, autojunk=False).ratio()
        return Verdict.of(likeness, exact=float(response == label))


@dataclass
class Gsm8kReward:
    """1 where the answer of a response is the number behind `####` in the label, as GSM8K is published, or the label,
    as verl's files of it have it."""

    def score(self, sample: Sample) -> Verdict:
        from slime_rewards.math.answers import (
            find_answer,  # here, because importing a plugin is to be quick
            label_text,
        )
        from slime_rewards.math.compare import number, same

        label = sample.prompt.label
        wanted = label_text(label) if isinstance(label, str) else None
        if wanted is None or number(wanted) is None:
            what = f"label {label!r:.80} has no number behind ####, nor is it one"
            return Verdict.invalid(f"row {sample.prompt.id}: {what}")
        answer, _ = find_answer(said(sample), AnswerForm.auto, is_cut=sample.status is Status.TRUNCATED)
        return Verdict.of(float(answer is not None and same(answer, wanted)))
