"""Each shipped model can earn its task's reward: a right answer, written as the model writes it, earns 1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from slime.compose.compose import examine
from slime.compose.groups import scan
from slime.config.schema import RewardConfig
from slime.plugins import load
from slime.reward.service import RewardService
from slime.types import VerdictKind
from slime_testing.plugins import sample

THINKS = (
    "<think>\n10 + 24 is {answer}. Or \\boxed{{7}}?\n</think>\n\nThe sum is {answer}.\n\nAnswer: \\boxed{{{answer}}}"
)
GOES_ON_THINKING = THINKS.removeprefix("<think>\n")  # its chat template ends the prompt with "<think>"
DOES_NOT = "First 10 + 20 is 30, then 4 more.\n\n### Result\n\nAnswer: \\boxed{{{answer}}}"
ADDS = "10+24={answer}"
COUNTS_DOWN = "34 times 1 is 34.\n<answer>{answer} * 1</answer>"
WRITES = {
    "deepseek-r1": GOES_ON_THINKING,
    "deepseek-v3": DOES_NOT,
    "deepseek-v3.2": DOES_NOT,
    "gemma3-1b": DOES_NOT,
    "gemma3-270m": DOES_NOT,
    "glm-4-32b": DOES_NOT,
    "glm-4-9b": DOES_NOT,
    "glm4-9b": GOES_ON_THINKING,
    "glm4.5": THINKS,
    "glm4.5-355b-a32b": THINKS,
    "glm4.5-air": THINKS,
    "glm4.5-fp8": THINKS,
    "glm4.6": THINKS,
    "glm4.7": GOES_ON_THINKING,
    "glm4.7-flash": GOES_ON_THINKING,
    "glm5": GOES_ON_THINKING,
    "glm5.1": GOES_ON_THINKING,
    "glm5.2": GOES_ON_THINKING,
    "llama3.1-8b": DOES_NOT,
    "llama3.2-1b": DOES_NOT,
    "llama3.2-3b": DOES_NOT,
    "mimo-7b-rl": THINKS,
    "qwen2.5-0.5b": COUNTS_DOWN,
    "qwen2.5-1.5b": DOES_NOT,
    "qwen2.5-14b": DOES_NOT,
    "qwen2.5-32b": DOES_NOT,
    "qwen2.5-3b": DOES_NOT,
    "qwen2.5-7b": DOES_NOT,
    "qwen2.5-coder-0.5b": COUNTS_DOWN,
    "qwen3-235b-a22b": THINKS,
    "qwen3-30b-a3b": THINKS,
    "qwen3-4b": THINKS,
    "r1-distill-qwen-1.5b": GOES_ON_THINKING,
    "r1-distill-qwen-14b": GOES_ON_THINKING,
    "r1-distill-qwen-32b": GOES_ON_THINKING,
    "r1-distill-qwen-7b": GOES_ON_THINKING,
    "smollm2-1.7b": DOES_NOT,
    "smollm2-135m": DOES_NOT,
    "smollm2-360m": DOES_NOT,
}
"""How a model answers by the chat template that it was published with, without more keys."""


LABELS = {
    "countdown": {"numbers": [34, 1], "target": 34},
    "gsm8k": "10 + 24 = <<10+24=34>>34\n#### 34",
}
"""Of the tasks whose labels are more than the number."""


class Rewards:
    """The workers of each reward that was asked for; models share them."""

    def __init__(self, workers: ExitStack) -> None:
        self._workers, self._services = workers, dict[str, RewardService]()

    def value(self, cfg: RewardConfig, response: str, label: object) -> float:
        if repr(cfg) not in self._services:
            patient = replace(cfg, timeout_s=200.0)  # on however busy a machine
            self._services[repr(cfg)] = self._workers.enter_context(RewardService(patient))
        verdict = asyncio.run(self._services[repr(cfg)].score(sample(response, label)))
        assert verdict.kind is VerdictKind.VALUE, verdict.reason
        assert verdict.value is not None
        return verdict.value


@pytest.fixture(scope="module")
def rewards() -> Iterator[Rewards]:
    with ExitStack() as workers:
        yield Rewards(workers)


@pytest.mark.parametrize("model", scan(load()).names("model"))
def test_a_right_answer_earns_1_and_a_wrong_one_less(model: str, rewards: Rewards) -> None:
    composed = examine([f"+model={model}", "+cluster=local"])
    cfg, task = composed.cfg.reward, composed.choices["task"]
    writes, label = ADDS if task == "arithmetic" else WRITES[model], LABELS.get(task, "34")
    wrong, right = (rewards.value(cfg, writes.format(answer=answer), label) for answer in (35, 34))
    assert wrong < right == 1.0
