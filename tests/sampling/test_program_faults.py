"""Programs that raise, exit, hang or block: each costs its attempt, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import sys
import time

import pytest

from plugins.agents.tests.conversations.formats import FORMATS, tokenizer_of
from plugins.agents.tests.conversations.talks import RandomModel
from slime.builtins import KeepAll
from slime.config.schema import DataConfig, ProgramConfig, RewardConfig, RolloutConfig, SamplingConfig
from slime.engine_client.client import Completion
from slime.engine_client.engine_set import EngineSet
from slime.sampling import held, pipeline
from slime.sampling.buffer import FifoBuffer
from slime.sampling.loop import Rollout
from slime.sampling.sampler import Sampler
from slime.types import Prompt, Status, Verdict, VerdictKind
from slime_agents.conversations.conversation import Conversations
from tests.engine_client.scripted_engine import Scorer

MESSAGES = ({"role": "user", "content": "add 1 and 2"},)
GRACE_S = 1.0
"""Far more than what a sound program does between two awaits takes where other processes keep the cores."""


class Busy(RandomModel):
    """Takes a moment for each response, and knows how many it makes at once."""

    num_at_once = most_at_once = 0

    async def generate(self, input_ids, sampling, /) -> Completion:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(0.01)
        self.num_at_once -= 1
        return await super().generate(input_ids, sampling)

    async def flush_cache(self) -> None: ...

    async def load(self) -> tuple[int, int]:
        return 0, 0


class Prompts:
    num_taken = 0

    def __init__(self, tokens):
        self._tokens = tokens

    def take(self, count):
        self.num_taken += count
        return [Prompt(f"0/{self.num_taken - count + n}", MESSAGES, self._tokens) for n in range(count)]


@pytest.fixture
def collect(tmp_path, monkeypatch):
    """Collects a step with a program; returns what was collected, and the engine."""
    for module in (held, pipeline):
        monkeypatch.setattr(module, "GRACE_S", GRACE_S)
    form = FORMATS["qwen3"]
    tokenizer = tokenizer_of(form, str(tmp_path))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    chat = Conversations(tokenizer, DataConfig(path=""), 500)

    def run(program, *, timeout_s=60.0, buffer=None, **changes):
        buffer = FifoBuffer() if buffer is None else buffer
        engine = Busy(form, tokenizer, random.Random(1))
        values = {"prompts_per_step": 4, "samples_per_prompt": 2, "program": ProgramConfig(timeout_s=timeout_s)}
        cfg = RolloutConfig(**values | changes, sampling=SamplingConfig(max_response_tokens=400))
        reward = RewardConfig(name="scripted", max_failed_share=0.1)
        sampler = Sampler(cfg, reward, 5, EngineSet([engine]), tokenizer, program, Scorer(), chat)
        prompts = Prompts(tuple(chat.first(MESSAGES, ())))
        rollout = Rollout(cfg, sampler, prompts=prompts, buffer=buffer, sample_filter=KeepAll())
        return asyncio.run(rollout.collect(1)), engine

    return run


class Faulty:
    """One attempt in a hundred each does what is wrong; all others say two things."""

    def __init__(self, *faults) -> None:
        self.faults, self.count = faults, 0

    async def run(self, task, model) -> None:
        number, self.count = self.count, self.count + 1
        conversation = model.conversation()
        await conversation.turn()
        if number % 20 == 7:
            await self.faults[number // 20 % len(self.faults)]()
        await conversation.turn({"role": "user", "content": "go on"})


async def raises():
    raise ValueError("no more")


async def exits():
    sys.exit(3)


async def hangs():
    await asyncio.sleep(3600)


async def hangs_and_swallows_what_would_end_it():
    while True:
        with contextlib.suppress(asyncio.CancelledError, GeneratorExit):
            await asyncio.sleep(3600)


async def blocks():
    while True:
        time.sleep(0.01)


def test_with_faults_of_each_kind_no_group_is_lost_or_mis_scored(collect):
    program = Faulty(raises, hangs, exits, hangs_and_swallows_what_would_end_it, blocks)
    collected, _ = collect(program, timeout_s=0.5, prompts_per_step=100, samples_per_prompt=4)
    samples = [sample for group in collected.groups for sample in group.samples]
    failed = [sample for sample in samples if sample.status is Status.FAILED]
    assert (len(samples), len(failed)) == (400, 20)
    assert all(sample.reward is None for sample in failed)
    assert all(sample.reward == sample.index % 2 for sample in samples if sample not in failed)
    reasons = [sample.verdict.reason.partition("(")[0].strip() for sample in failed]
    late, blocked = "the program did not end within 0.5 s of its own", "DidNotReturnError: did not return within 1 s"
    raised = {f"the program raised {what}" for what in (blocked, "SystemExit: 3", "ValueError: no more")}
    assert set(reasons) == {late} | raised
    assert collected.stats["rollout/reward_timeout"] == reasons.count(late) == 8
    assert collected.stats["rollout/reward_error"] == 12


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e39])
def test_a_reward_that_no_model_can_learn_from_costs_its_attempt(collect, value):
    class Judges:
        count = 0

        async def run(self, task, model) -> Verdict:
            await model.respond()
            self.count += 1
            return Verdict.of(value if self.count == 3 else 0.5, correct=1.0)

    collected, _ = collect(Judges(), samples_per_prompt=4)
    verdicts = [sample.verdict for group in collected.groups for sample in group.samples]
    [refused] = [verdict for verdict in verdicts if verdict.value is None]
    assert (refused.kind, refused.reason.partition(";")[0]) == (
        VerdictKind.ERROR, f"the program returned a Verdict with value={value!r}"
    )  # fmt: skip
    assert all(verdict == Verdict.of(0.5, correct=1.0) for verdict in verdicts if verdict is not refused)
    assert collected.stats["rollout/reward_error"] == 1


def test_a_tool_holds_no_place_at_an_engine(collect):
    class Tool:
        num_at_once = most_at_once = 0

        async def run(self, task, model) -> None:
            self.num_at_once += 1
            self.most_at_once = max(self.most_at_once, self.num_at_once)
            conversation = model.conversation()
            await conversation.turn()
            await asyncio.sleep(0.1)
            await conversation.turn({"role": "tool", "content": "3"})
            self.num_at_once -= 1

    program = Tool()
    collected, engine = collect(program, max_requests_per_engine=2)
    assert program.most_at_once == 4, "two at the engine, and two whose tools run"
    assert engine.most_at_once == 2
    assert len(engine.requests) == 16
    assert all(sample.status is not Status.FAILED for group in collected.groups for sample in group.samples)


def test_the_time_that_the_engines_take_is_not_the_program_s(collect):
    class Patient:
        async def run(self, task, model) -> None:
            conversation = model.conversation()
            await conversation.turn()
            for _ in range(30):
                await conversation.turn({"role": "user", "content": "go on"}, max_tokens=2)

    collected, _ = collect(Patient(), timeout_s=0.15, prompts_per_step=1)
    assert collected.stats["rollout/reward_timeout"] == 0


@pytest.mark.parametrize("does", [hangs, hangs_and_swallows_what_would_end_it])
def test_what_is_away_when_a_step_has_enough_ends_soon_and_begins_again(collect, does):
    """The first group is done at once; the other's programs hang, and are not waited for."""

    class Some:
        async def run(self, task, model) -> None:
            conversation = model.conversation()
            await conversation.turn()
            if task.prompt.id != "0/0":
                await does()

    buffer, start = FifoBuffer(), time.monotonic()
    collected, _ = collect(Some(), prompts_per_step=1, over_sampling=2.0, buffer=buffer)
    assert [group.id for group in collected.groups] == ["0/0"]
    [waiting] = buffer.take(9, 2)
    assert [(sample.status, sample.segments, sample.turns) for sample in waiting.samples] == [
        (Status.PENDING, [], [])
    ] * 2
    assert time.monotonic() - start < 20


def test_time_outs_of_a_program_s_own_do_not_end_it(collect):
    """They cancel the task that they are in, and take it back."""

    async def waits(model):
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
        await model.conversation().turn()

    class Waits:
        async def run(self, task, model):
            await waits(model)

    collected, _ = collect(Waits())
    assert all(sample.reward is not None for group in collected.groups for sample in group.samples)
