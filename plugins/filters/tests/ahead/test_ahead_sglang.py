"""Steps ahead against SGLang itself, with publishes while requests are inside: every token by its version's weights."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

import pytest
import torch

from slime.algo.advantages import GroupMean
from slime.builtins import KeepAll, Single
from slime.config.choices import Publish
from slime.config.schema import RewardConfig, RolloutConfig, SamplingConfig
from slime.engine_client.engine_set import EngineSet
from slime.net import Endpoint
from slime.sampling.buffer import Begun, FifoBuffer
from slime.sampling.loop import Collected
from slime.sampling.sampler import Sampler
from slime.segments import Segment
from slime.types import IS_CURRENT
from slime_filters.ahead.gate import EngineGate
from slime_filters.ahead.rollout import GroupsAhead
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing.engines import hf_tensors
from slime_testing.publishing import publish
from tests.advantages import to_train_samples
from tests.engine_client.scripted_engine import Letters, Scorer
from tests.sampling.scripted_rollout import Prompts

pytestmark = pytest.mark.slow

EXACT = 1e-4
"""Nats, fp32 on both sides; other weights are unrelated, and off by 0.3 and more."""
STEPS = 5


@pytest.fixture(scope="module")
def models(hf_model, tiny_model) -> dict[int, Any]:
    return {version: hf_model(tiny_model, seed=200 + version).eval() for version in range(STEPS)}


async def collect(endpoint: Endpoint, models: dict[int, Any], mode: Publish) -> list[Collected]:
    cfg = RolloutConfig(
        prompts_per_step=4,
        samples_per_prompt=4,
        max_staleness=1,
        publish=mode,
        sampling=SamplingConfig(max_response_tokens=150),
    )
    client = SGLangClient(endpoint, 60.0)
    engines = EngineSet([client])
    gate = EngineGate(engines, mode, 60.0)
    sampler = Sampler(cfg, RewardConfig(name="scripted"), 5, engines, Letters(), Single(), Scorer(), None, gate)
    begun = Begun()
    sources = {"prompts": Prompts(), "buffer": FifoBuffer(), "sample_filter": KeepAll(), "begun": begun}
    rollout = GroupsAhead(cfg, sampler, num_steps=STEPS, **sources)
    collected = []
    try:
        for version in range(STEPS):
            await gate.close()
            weights = dict(hf_tensors(models[version])).items()
            flushes = mode is not Publish.keep
            await asyncio.to_thread(publish, iter(weights), [endpoint], version, 1 << 20, flushes=flushes)
            await gate.open(version)
            rollout.go_on(version)
            collected.append(await rollout.collect(version))
            await work(client, begun)
    finally:
        await rollout.close()
        await client.close()
    return collected


async def work(client: SGLangClient, begun: Begun) -> None:
    """The trainer's, however fast the engine is: until that has gone on with what was begun ahead, or has ended all."""
    least = math.inf
    while begun.groups.keys() - begun.decisions.keys():
        num_requests, num_tokens = await client.load()
        if num_requests:  # none have arrived where a group was begun just now
            least = min(least, num_tokens)
            if num_tokens > least + 8 * num_requests:
                return
        await asyncio.sleep(0.01)


@torch.no_grad()
def gaps(model: Any, segment: Segment) -> list[torch.Tensor]:
    """By span, the nats between what the engine said and what the weights of `model` say."""
    tokens = torch.tensor([*segment.context, *segment.tokens])
    logits = model(tokens[None]).logits[0, len(segment.context) - 1 : -1]
    said = logits.log_softmax(-1).gather(1, tokens[len(segment.context) :, None])[:, 0]
    return list((torch.tensor(segment.logprobs) - said).abs().split([span.num_tokens for span in segment.spans]))


@pytest.mark.parametrize("mode", list(Publish))
def test_the_version_of_every_token_is_right(mode, endpoint, models):
    steps = asyncio.run(collect(endpoint, models, mode))
    samples = [sample for step in steps for group in step.groups for sample in group.samples]
    assert len(samples) == 16 * STEPS
    num_crossing, is_mixed = 0, Counter[bool]()
    for segment in (segment for sample in samples for segment in sample.segments):
        segment.check()
        by_version = {version: gaps(models[version], segment) for version in {span.version for span in segment.spans}}
        for place, span in enumerate(segment.spans):
            is_mixed[span.is_mixed] += 1
            if not span.is_mixed:
                assert by_version[span.version][place].max() < EXACT
        num_crossing += len(by_version) > 1
    assert num_crossing > STEPS, "hardly one was generated over a publish"
    assert bool(is_mixed[True]) == (mode is Publish.keep)


def test_tokens_on_older_keys_do_not_feed_the_alarm(endpoint, models):
    """They are of the weights that are trained; but with keys of others an engine says other log-probs."""
    steps = asyncio.run(collect(endpoint, models, Publish.keep))
    num_mixed = 0
    for version, step in enumerate(steps):
        trained = to_train_samples(step.groups, GroupMean(normalize_std=True), version, 1)
        current = sum(sample.columns[IS_CURRENT].sum() for sample in trained)
        spans = [span for g in step.groups for one in g.samples for span in one.spans if span.version == version]
        assert current == sum(span.num_tokens for span in spans if not span.is_mixed)
        num_mixed += sum(span.num_tokens for span in spans if span.is_mixed)
    assert num_mixed > 0
