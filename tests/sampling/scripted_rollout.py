"""A scripted rollout: prompts of one token, a filter that drops what it was told, and steps one after another."""

from __future__ import annotations

import asyncio

from slime.builtins import KeepAll, Single
from slime.config.schema import RewardConfig, RolloutConfig, SamplingConfig
from slime.engine_client.engine_set import EngineSet
from slime.sampling.buffer import FifoBuffer
from slime.sampling.loop import Rollout
from slime.sampling.sampler import Sampler
from slime.types import Decision, Prompt
from tests.engine_client.scripted_engine import STOP_TOKEN, Letters, Scorer, answer, connected

VERSION = 3


class Prompts:
    """Prompt n is the one token n."""

    def __init__(self):
        self.taken = 0

    def take(self, count):
        numbers = range(self.taken, self.taken + count)
        self.taken += count
        return [Prompt(f"0/{number}", (), (number,), label=number) for number in numbers]


class Filter:
    """Drops the prompts it was given."""

    def __init__(self, dropped):
        self.dropped = dropped

    def decide(self, group):
        drop = group.prompt.label in self.dropped
        return Decision(keep=False, reason="scripted") if drop else Decision(keep=True)


def config(**changes):
    sampling = SamplingConfig(max_response_tokens=changes.pop("max_response_tokens", 20))
    values = {"prompts_per_step": 4, "samples_per_prompt": 2, "max_requests_per_engine": 16, "sampling": sampling}
    return RolloutConfig(**values | changes)


def run(
    engine,
    steps=1,
    *,
    scorer=None,
    program=None,
    sample_filter=None,
    buffer=None,
    prompts=None,
    max_failed_share=0.1,
    **changes,
):
    """Collect `steps` times, one weight version after the other; a failing step ends it with its error."""

    async def main():
        async with engine, connected(engine.endpoint) as client:
            cfg, reward = config(**changes), RewardConfig(name="scripted", max_failed_share=max_failed_share)
            rollout = Rollout(
                cfg,
                Sampler(cfg, reward, 5, EngineSet([client]), Letters(), program or Single(), scorer or Scorer()),
                prompts=prompts or Prompts(),
                buffer=FifoBuffer() if buffer is None else buffer,
                sample_filter=sample_filter or KeepAll(),
            )
            collected = []
            for version in range(VERSION, VERSION + steps):
                engine.version = str(version)
                collected.append(await rollout.collect(version))
            return collected

    return asyncio.run(main())


def tokens(prompt_token, length):
    return [*(answer(prompt_token, position) for position in range(length - 1)), STOP_TOKEN]
