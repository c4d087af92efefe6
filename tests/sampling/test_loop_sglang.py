"""The sampling loop, evaluation and several engines against SGLang itself, with the demo's model, data and reward."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from safetensors.torch import load_file

from slime.builtins import KeepAll, Single
from slime.compose.compose import compose
from slime.config.paths import resolve
from slime.config.schema import SlimeConfig
from slime.data.prompts import HeldOut, PromptSource
from slime.data.tokenize import load_tokenizer
from slime.engine_client.engine_set import EngineSet
from slime.net import LOOPBACK, new_key
from slime.reward.service import RewardService
from slime.sampling.buffer import FifoBuffer
from slime.sampling.evaluate import evaluate
from slime.sampling.loop import Collected, Rollout
from slime.sampling.sampler import Sampler
from slime.topology.topology import read_topology
from slime.types import Status
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.driver.pairs import Pairs
from slime_sglang.engine.driver.process import EngineProcess
from slime_testing.engines import server, started
from slime_testing.models import write_checkpoint
from slime_testing.publishing import publish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cfg() -> SlimeConfig:
    return compose(["+model=glm4-tiny", "+cluster=local", "rollout.prompts_per_step=8", "rollout.samples_per_prompt=4"])


@pytest.fixture(scope="module")
def weights(cfg, tmp_path_factory):
    """Random weights, with which responses are all different and as long as they may be."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(json.loads((resolve(cfg.model.path) / "config.json").read_text()), folder)
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def engines(cfg, tmp_path_factory) -> Iterator[list[EngineProcess]]:
    logs = tmp_path_factory.mktemp("engines")
    where = {"host": LOOPBACK, "key": new_key()}
    engines = [server(read_topology(cfg), log=logs / f"{n}.log", **where) for n in range(2)]
    with started(engines):
        yield engines


@pytest.fixture(scope="module")
def rewards(cfg) -> Iterator[RewardService]:
    with RewardService(cfg.reward) as service:
        yield service


class Bench:
    """One rollout over running engines, from the first prompt of the set on."""

    def __init__(self, cfg, weights, engines, rewards) -> None:
        self.cfg, self.weights, self.engines, self.rewards = cfg, weights, engines, rewards
        self.tokenizer = load_tokenizer(resolve(cfg.model.path))
        self.prompts = PromptSource(cfg.data, self.tokenizer, cfg.run.seed, cfg.rollout.max_prompt_tokens)
        self.buffer = FifoBuffer()
        self.evaluations: list[dict[str, float]] = []

    def publish(self, version: int) -> None:
        publish(iter(self.weights.items()), [engine.endpoint for engine in self.engines], version, 1 << 26)

    def collect(self, *versions: int, disturb=lambda kept, needed: None, evaluates=False) -> list[Collected]:
        """One step a version, right behind an evaluation under the same weights if there is to be one."""
        return asyncio.run(self._collect(versions, disturb, evaluates))

    async def _collect(self, versions, disturb, evaluates) -> list[Collected]:
        async with AsyncExitStack() as stack:
            clients = [self._client(stack, SGLangClient(engine.endpoint)) for engine in self.engines]
            topology, front = read_topology(self.cfg), clients
            if topology.works_in_pairs:
                front = [await Pairs.of((group.role for group in topology.group_of_engine), clients)]
            engines, seed = EngineSet(front), self.cfg.run.seed
            parts = (engines, self.tokenizer, Single(), self.rewards)
            sampler = Sampler(self.cfg.rollout, self.cfg.reward, seed, *parts)
            few = dataclasses.replace(self.cfg.rollout, max_requests_per_engine=8)
            scored = Sampler(few, self.cfg.reward, seed, *parts)
            rollout = Rollout(
                self.cfg.rollout, sampler, prompts=self.prompts, buffer=self.buffer, sample_filter=KeepAll()
            )
            collected = []
            for version in versions:
                await asyncio.to_thread(self.publish, version)
                if evaluates:
                    self.evaluations.append(await self._evaluate(scored, version))
                collected.append(await rollout.collect(version, disturb))
            return collected

    async def _evaluate(self, sampler, version) -> dict[str, float]:
        seen: list[tuple[int, int]] = []
        sets = [HeldOut("", self.cfg.eval, [self.prompts.prompts.prompt(row, "eval") for row in range(20)])]
        _, stats = await evaluate(sampler, sets, version, lambda done, total: seen.append((done, total)))
        assert seen == [(done, 20) for done in range(1, 21)]
        return stats

    def _client(self, stack: AsyncExitStack, client: SGLangClient) -> SGLangClient:
        stack.push_async_callback(client.close)
        return client


@pytest.fixture
def bench(cfg, weights, engines, rewards):
    def bench(num_engines=1, **rollout) -> Bench:
        changed = SlimeConfig(**vars(cfg) | {"rollout": type(cfg.rollout)(**vars(cfg.rollout) | rollout)})
        return Bench(changed, weights, engines[:num_engines], rewards)

    return bench


def responses(collected: list[Collected]) -> list[tuple]:
    samples = [sample for step in collected for group in step.groups for sample in group.samples]
    return [(s.prompt.id, s.index, s.segments[0].tokens, s.segments[0].logprobs, s.status, s.reward) for s in samples]


def test_a_step_repeats_bit_for_bit_however_it_is_batched(bench):
    """Tokens and log-probs are equal, not close: this is what lets a resumed run continue bit for bit.

    The prompts together are more than SGLang would prefill at once by itself; it would cut one of them.
    """
    together = bench(prompts_per_step=64).collect(1, 2)
    few = bench(prompts_per_step=64, max_requests_per_engine=40).collect(1, 2)
    assert responses(few) == responses(together)
    tokens = [tuple(response[2]) for response in responses(together)]
    assert len(set(tokens)) > len(tokens) / 2, "samples of a prompt differ from one another"


def test_samples_are_whole(bench):
    (step,) = bench().collect(1)
    assert [group.id for group in step.groups] == [prompt.id for prompt in bench().prompts.take(8)]
    for sample in (sample for group in step.groups for sample in group.samples):
        sample.segments[0].check()
        assert sample.status in (Status.COMPLETED, Status.TRUNCATED)
        assert sample.verdict is not None
        assert all(logprob < 0 for logprob in sample.segments[0].logprobs)
        assert [span.version for span in sample.segments[0].spans] == [1]
    lengths = [sample.num_sampled for group in step.groups for sample in group.samples]
    assert step.stats["rollout/num_tokens"] == sum(lengths)


def test_an_interrupted_response_goes_on_as_if_it_had_not_been(bench):
    """The same weights as three versions: with the noise of the same positions, only the weight spans differ. Few
    responses are as long as they may be: those would end together, with none on its way."""
    long = {"sampling": type(bench().cfg.rollout.sampling)(max_response_tokens=192)}
    whole = bench(prompts_per_step=16, **long).collect(1)
    parts = bench(prompts_per_step=4, over_sampling=2.0, max_requests_per_engine=20, **long).collect(1, 2, 3)
    uninterrupted = {response[:2]: response[2] for response in responses(whole)}
    num_continued = 0
    for group in (group for step in parts for group in step.groups):
        for sample in group.samples:
            sample.segments[0].check()
            num_continued += len(sample.segments[0].spans) > 1
            assert sample.segments[0].tokens == uninterrupted[group.id, sample.index]
    assert num_continued > 0


def test_evaluation_repeats_and_the_rollouts_around_it_do(bench, cfg):
    """Greedy requests would change what seeded ones draw, were they ever in one batch."""
    assert cfg.eval.sampling.temperature == 0
    evaluated = bench()
    assert responses(evaluated.collect(3, 4, evaluates=True)) == responses(bench().collect(3, 4))
    first, second = evaluated.evaluations
    for metrics in (first, second):
        assert metrics.pop("seconds/eval") > 0
    assert first == second
    assert 0 <= first["eval/reward_mean"] <= 1


def test_two_engines_share_the_work_and_change_nothing(bench, engines):
    alone = bench().collect(5)
    before = [num_generated(engine) for engine in engines]
    shared = bench(num_engines=2).collect(5)
    assert responses(shared) == responses(alone)
    served = [num_generated(engine) - count for engine, count in zip(engines, before, strict=True)]
    assert sum(served) >= 32
    assert min(served) >= 8


def test_an_engine_that_dies_beside_another_costs_no_sample(bench, engines):
    alone = bench().collect(6)

    def kill(kept, needed):
        if kept == 1:
            os.killpg(engines[1].pid, signal.SIGKILL)

    shared = bench(num_engines=2, max_requests_per_engine=4).collect(6, disturb=kill)
    assert responses(shared) == responses(alone)


def num_generated(engine: EngineProcess) -> int:
    """Sequences that the engine's log says were prefilled."""
    return sum(int(count) for count in re.findall(r"Prefill batch, #new-seq: (\d+)", engine.log.read_text()))
