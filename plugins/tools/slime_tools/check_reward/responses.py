"""The responses that a reward is tried on: right ones made of labels, wrong ones a slip away, and hostile ones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

TEMPLATES = (
    "{label}",
    "So it is \\boxed{{label}}.",
    "I think.</think>So it is \\boxed{{label}}.",
    "I think.\nAnswer: {label}",
    "I think.\n#### {label}",
)
"""How a response may state its answer; the first that a reward pays for most labels is taken."""
HOSTILE = (
    "",
    " ",
    "\0",
    "9^{9^{9^{9}}}",
    "\\sin(9^{9^{9^{9}}})",
    "1000000000!",
    "\\binom{1000000000}{500000000}",
    "((((((((((x+1)^9)^9)^9)^9)^9)^9)^9)^9)^9",
    "\\frac{" * 2000,
    "{" * 20000,
    "(" * 20000,
    "\\boxed{" * 5000,
    "\\sqrt{" * 3000 + "2" + "}" * 3000,
    "1," * 20000,
    "9" * 100_000,
    "a" * 200_000,
    "answer is " * 20000,
    " \n" * 50_000,
    "\\text{or} " * 5000,
    "\u202e5\u0301\ufeff\U0001f600" * 1000,
    "\\input{/etc/passwd}",
    "__import__('os').abort()",
    "{label}",
    "*",
    "any number",
)
"""Texts that hang, crash or fool graders. None is right for any label."""
THOUGHTS = ("<think>{answer}</think>", "<think>{answer}", "{answer}</think>")
"""A right answer that is only thought; as hostile as the texts above."""
_NUMBER = re.compile(r"\d+")


def stated(template: str, label: str) -> str:
    return template.replace("{label}", label)


def thought(template: str, label: str) -> list[str]:
    """`THOUGHTS` of an answer, of which a template may say that it stands behind thinking."""
    answer = stated(template.rpartition("</think>")[2], label)
    return [each.replace("{answer}", answer) for each in THOUGHTS]


def wrong(label: str, others: Sequence[str], draw: random.Random) -> Iterator[str]:
    """Answers that are not `label`: each of its numbers by one more, its sign, two numbers for one, another label."""
    found = list(_NUMBER.finditer(label))
    for number in found[:3]:
        changed = str(int(number[0]) + 1)
        yield label[: number.start()] + changed + label[number.end() :]
    if found and label.lstrip("$ ")[:1].isdigit() and int(found[0][0]):
        yield f"-{label}"
    if len(found) == 1 and label.strip().isdecimal():
        if int(label):
            yield f"{label}0"
        yield f"{label} or {int(label) + 1}"
    different = [other for other in others if other != label and not _are_near(other, label)]
    if different:
        yield draw.choice(different)


def _are_near(one: str, other: str) -> bool:
    """Whether two labels may be one answer in two spellings: without their signs and letters they are the same."""
    return _NUMBER.findall(one) == _NUMBER.findall(other)
