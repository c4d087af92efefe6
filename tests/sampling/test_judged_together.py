"""Groups whose samples are judged together: once, when all have ended."""

from __future__ import annotations

import asyncio

import pytest

from slime.sampling.buffer import FifoBuffer
from slime.types import Status, Verdict
from tests.engine_client.scripted_engine import Scorer, ScriptedEngine
from tests.sampling.scripted_rollout import Prompts, run


class Unlucky:
    """Fails for the samples of these indices, of all prompts or of one, after their response; judges those of `judged`
    itself."""

    in_driver = True

    def __init__(self, failing=(), judged=(), *, of=None):
        self._failing, self._judged, self._of = failing, judged, of

    async def run(self, task, model):
        await model.respond()
        if task.attempt in self._failing and self._of in (None, task.prompt.label):
            raise ValueError("no luck")
        return Verdict.of(9.0) if task.attempt in self._judged else None


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_group_is_judged_once_when_all_its_samples_have_ended(seconds):
    scorer = Scorer(seconds=seconds, together=True)
    (step,) = run(ScriptedEngine(), scorer=scorer, samples_per_prompt=3)
    assert sorted(scorer.scored) == [(f"0/{number}", (0, 1, 2)) for number in range(4)]
    assert [group.rewards for group in step.groups] == [[0.0, 1.0, 0.0]] * 4


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_samples_that_failed_are_not_shown_whichever_they_are(failing):
    scorer = Scorer(together=True)
    program = Unlucky(failing=[failing])
    (step,) = run(ScriptedEngine(), scorer=scorer, program=program, samples_per_prompt=3, max_failed_share=0.5)
    rest = tuple(index for index in range(3) if index != failing)
    assert sorted(scorer.scored) == [(f"0/{number}", rest) for number in range(4)]
    assert [group.rewards for group in step.groups] == [[float(index % 2) for index in rest]] * 4
    assert step.stats["rollout/reward_error"] == 4


def test_a_group_without_a_response_is_not_judged():
    scorer = Scorer(together=True)
    (step,) = run(ScriptedEngine(), scorer=scorer, program=Unlucky(failing=[0, 1], of=2), max_failed_share=0.5)
    assert "0/2" not in {name for name, _ in scorer.scored}
    assert step.stats["rollout/reward_error"] == 2
    assert step.stats["filter/drop/too_few_values"] == 1


def test_what_a_program_judged_is_shown_and_keeps_its_verdict():
    scorer = Scorer(together=True)
    (step,) = run(ScriptedEngine(), scorer=scorer, program=Unlucky(judged=[0]), samples_per_prompt=3)
    assert sorted(scorer.scored) == [(f"0/{number}", (0, 1, 2)) for number in range(4)]
    assert [group.rewards for group in step.groups] == [[9.0, 1.0, 0.0]] * 4


class SlowFor(Scorer):
    """Never judges the groups of these prompts."""

    def __init__(self, slow):
        super().__init__(together=True)
        self.slow = slow

    async def score_group(self, samples):
        await asyncio.sleep(1000 if samples[0].prompt.label in self.slow else 0)
        return await super().score_group(samples)


def test_a_group_whose_judging_was_cut_short_is_judged_in_the_next_step():
    buffer, prompts = FifoBuffer(), Prompts()
    scorer = SlowFor([1])
    (first,) = run(ScriptedEngine(), scorer=scorer, buffer=buffer, prompts=prompts, over_sampling=1.25)
    assert "0/1" not in {group.id for group in first.groups}
    assert [name for name, _ in scorer.scored] == [group.id for group in first.groups]
    scorer.slow = []
    (second,) = run(ScriptedEngine(), scorer=scorer, buffer=buffer, prompts=prompts)
    judged = {group.id: group for group in second.groups}
    assert judged["0/1"].rewards == [0.0, 1.0]
    assert all(sample.status is Status.COMPLETED for sample in judged["0/1"].samples)
    assert scorer.scored.count(("0/1", (0, 1))) == 1
