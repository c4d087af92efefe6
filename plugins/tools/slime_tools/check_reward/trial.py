"""Scores right, wrong and hostile responses in a reward's own worker processes, and counts.

Right ones are made of labels, wrong ones are a slip away. A reward that judges groups gets both together.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from slime.config.schema import RewardConfig
from slime.reward.service import RewardService
from slime.thinking import divided
from slime.types import Prompt, Sample, Status, Verdict, VerdictKind

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
    # Labels with the same numbers may be one answer in two spellings.
    if different := [other for other in others if other != label and _NUMBER.findall(other) != _NUMBER.findall(label)]:
        yield draw.choice(different)


TRIED = 16
"""Rows by which the template is chosen, and whose right answers are thought and not said."""
_FIRST = 4
"""Rows that are tried before all others: a worker that hangs or ends takes seconds to be replaced."""
_FAILED = {VerdictKind.TIMEOUT.value, VerdictKind.ERROR.value}
_AT_ONCE = 256


@dataclass(frozen=True)
class Case:
    prompt: Prompt
    response: str


@dataclass
class Outcome:
    """What became of one kind of responses.

    Attributes:
        paid: those with at least the value of a right answer.
        without: verdicts without a value, by kind.
        examples: of what should not have been, at most `MAX_EXAMPLES`.
        parts: of the reward, each with the mean over the responses that have it.
    """

    num: int = 0
    paid: int = 0
    without: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Trial:
    """The outcomes of right, wrong and hostile responses, and the template of the answers."""

    template: str
    right: Outcome
    wrong: Outcome
    hostile: Outcome

    def faults(self, least: float) -> list[str]:
        """Why the reward is unfit; empty if it is fit.

        Args:
            least: share of right answers that must be paid.
        """
        share = self.right.paid / self.right.num
        checks = {
            f"{share:.1%} of right answers are paid, at least {least:.1%} should be": share < least,
            f"{self.wrong.paid} wrong answers are paid": self.wrong.paid > 0,
            f"{self.hostile.paid} hostile responses are paid": self.hostile.paid > 0,
        }
        for name, outcome in (("right", self.right), ("wrong", self.wrong), ("hostile", self.hostile)):
            for kind in (VerdictKind.TIMEOUT, VerdictKind.ERROR):
                count = outcome.without.get(kind.value, 0)
                checks[f"{count} {name} responses end in {kind.value}"] = count > 0
        return [fault for fault, holds in checks.items() if holds]


MAX_EXAMPLES = 3


def refused_labels(cfg: RewardConfig, prompts: Sequence[Prompt]) -> list[str]:
    """Why the reward cannot judge these rows, whatever is answered."""

    async def asked(service: RewardService) -> list[Verdict]:
        return await asyncio.gather(*(service.score(_sample(Case(prompt, ""))) for prompt in prompts))

    with RewardService(cfg) as service:
        return [said.reason for said in asyncio.run(asked(service)) if said.kind is VerdictKind.INVALID]


def try_reward(
    cfg: RewardConfig,
    prompts: Sequence[Prompt],
    template: str | None,
    pays: float,
    answers: Sequence[str] | None = None,
) -> Trial:
    """Try a reward.

    Args:
        prompts: at least one.
        template: of a response, with `{label}`; None takes the one of `TEMPLATES` by which most labels are paid.
        pays: the value of a right answer, at least.
        answers: right responses to the prompts, in the place of those made of labels.

    Raises:
        SlimeError: the reward cannot be created.
    """
    with RewardService(cfg) as service:
        if answers is not None:
            return asyncio.run(_tried_with(service, prompts, answers, pays))
        return asyncio.run(_tried(service, prompts, template, pays))


async def _tried_with(service: RewardService, prompts: Sequence[Prompt], answers: Sequence[str], pays: float) -> Trial:
    """The answers are right, each other's are wrong, and so are they where they are thought alone."""
    rights = [Case(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    slips = [
        Case(one.prompt, other.response)
        for one, other in pairwise(rights)
        if one.response != other.response and one.prompt.label != other.prompt.label
    ]
    attacks = [Case(prompts[0], text) for text in HOSTILE]
    attacks += [
        Case(case.prompt, text) for case in rights[:TRIED] for text in thought("{label}", divided(case.response)[1])
    ]
    return Trial(
        "",
        await _scored(service, rights, pays, is_right=True, beside=slips),
        await _scored(service, slips, pays, is_right=False, beside=rights),
        await _scored(service, attacks, pays, is_right=False, beside=rights),
    )


async def _tried(service: RewardService, prompts: Sequence[Prompt], template: str | None, pays: float) -> Trial:
    draw = random.Random(0)
    of_first: dict[str, Outcome] = {}
    for each in TEMPLATES if template is None else [template]:
        outcome = of_first[each] = await _scored(service, _right(prompts[:_FIRST], each), pays, is_right=True)
        if sum(outcome.without.get(kind, 0) for kind in _FAILED) < outcome.num:  # any came to a verdict
            break
    else:
        tried, outcome = next(iter(of_first.items()))
        return Trial(tried, outcome, Outcome(), Outcome())
    if template is None:
        found = {each: await _scored(service, _right(prompts[:TRIED], each), pays, is_right=True) for each in TEMPLATES}
        template = max(found, key=lambda each: found[each].paid)
    labels = [label_text(prompt) for prompt in prompts]
    slips = [
        Case(prompt, stated(template, answer))
        for prompt in prompts
        for answer in wrong(label_text(prompt), labels, draw)
    ]
    attacks = [
        Case(prompts[0], text) for each in HOSTILE for text in dict.fromkeys((each, template.replace("{label}", each)))
    ]
    attacks += [Case(prompt, text) for prompt in prompts[:TRIED] for text in thought(template, label_text(prompt))]
    rights = _right(prompts, template)
    return Trial(
        template,
        await _scored(service, rights, pays, is_right=True, beside=slips),
        await _scored(service, slips, pays, is_right=False, beside=rights),
        await _scored(service, attacks, pays, is_right=False, beside=rights),
    )


def label_text(prompt: Prompt) -> str:
    return str(prompt.label)


def _right(prompts: Sequence[Prompt], template: str) -> list[Case]:
    return [Case(prompt, stated(template, label_text(prompt))) for prompt in prompts]


def _sample(case: Case, index: int = 0) -> Sample:
    return Sample(case.prompt, index, response=case.response, status=Status.COMPLETED)


async def _scored(
    service: RewardService, cases: Sequence[Case], pays: float, *, is_right: bool, beside: Sequence[Case] = ()
) -> Outcome:
    """What becomes of `cases`, each the last in a group with those `beside` of its prompt, where groups are judged."""
    outcome, began, slots = Outcome(num=len(cases)), time.monotonic(), asyncio.Semaphore(_AT_ONCE)
    others = defaultdict[str, list[Case]](list)
    for each in beside:
        others[each.prompt.id].append(each)

    async def verdict(case: Case) -> Verdict:
        async with slots:
            if not service.judges_groups(case.prompt):
                return await service.score(_sample(case))
            group = [*others[case.prompt.id], case]
            return (await service.score_group([_sample(each, index) for index, each in enumerate(group)]))[-1]

    verdicts = await asyncio.gather(*map(verdict, cases))
    told = defaultdict[str, list[float]](list)
    for name, value in (part for said in verdicts for part in said.parts.items()):
        told[name].append(value)
    outcome.parts = {name: fmean(values) for name, values in told.items()}
    for case, said in zip(cases, verdicts, strict=True):
        is_paid = said.value is not None and said.value >= pays
        outcome.paid += is_paid
        if said.value is None:
            outcome.without[said.kind.value] = outcome.without.get(said.kind.value, 0) + 1
        if is_paid != is_right and (is_paid or is_right or said.value is None) and len(outcome.examples) < MAX_EXAMPLES:
            why = f"value {said.value:g}" if said.value is not None else f"{said.kind.value}: {said.reason}"
            outcome.examples.append(f"label {case.prompt.label!r:.60}, response {case.response!r:.60}: {why}")
    outcome.seconds = time.monotonic() - began
    return outcome
