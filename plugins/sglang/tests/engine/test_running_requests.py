"""A publish while requests are inside a real engine: whose log-probs, under which number, and who lives on.

The versions are unrelated random weights: a token that is scored under the wrong one is off by nats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch

from slime.engine_client.client import Completion, FinishReason
from slime.errors import SlimeError
from slime.net import Endpoint
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.running_requests import RUNNING
from slime_testing.engines import hf_tensors
from slime_testing.publishing import publish

pytestmark = pytest.mark.slow

EXACT = 1e-4
"""Nats, fp32 on both sides."""
APART = 0.1
"""Of the mean over tokens under other weights; measured are 0.3 to 1.5."""
FIRST = 100
SOME = 150
"""Tokens of all requests together, between two publishes."""
PROMPTS = [list(range(10, 40)), list(range(40, 75)), list(range(10, 40))]
"""Two have the same tokens, so that one finds the other's keys in the cache."""
LONG = {"temperature": 1.0, "max_new_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(hf_model, tiny_model) -> dict[int, Any]:
    """By version; each publish of a test brings another one."""
    return {version: hf_model(tiny_model, seed=version).eval() for version in range(FIRST, FIRST + 3)}


class Bench:
    """A client, with an engine that serves version `FIRST`."""

    def __init__(self, client: SGLangClient, endpoint: Endpoint, models: dict[int, Any]) -> None:
        self.client, self.models, self._endpoint = client, models, endpoint

    async def publish(self, version: int, *, flushes: bool = True) -> None:
        tensors = dict(hf_tensors(self.models[version])).items()
        await asyncio.to_thread(publish, iter(tensors), [self._endpoint], version, 1 << 20, flushes=flushes)

    async def begin(self) -> list[asyncio.Task[Completion]]:
        """Requests for all prompts: those of one message, and one that goes alone."""
        requests = [asyncio.create_task(self.client.generate(prompt, LONG)) for prompt in PROMPTS]
        requests.append(asyncio.create_task(self.client.generate(PROMPTS[1], LONG, rid="alone")))
        await self.come_on(sum(map(len, PROMPTS)) + len(PROMPTS[1]))
        return requests

    async def come_on(self, before: int) -> int:
        """Wait until all requests are being generated, and the engine holds `SOME` tokens more than before; the tokens
        in its pool."""
        while True:
            [load] = (await self.client._get("/v1/loads?include=core"))["loads"]
            if load["num_running_reqs"] == len(PROMPTS) + 1 and load["num_used_tokens"] > before + SOME:
                return int(load["num_used_tokens"])
            await asyncio.sleep(0.02)

    def gaps(self, prompt: list[int], completion: Completion, version: int) -> torch.Tensor:
        """By token, the nats between what the engine said and what `version` says."""
        tokens = torch.tensor([*prompt, *completion.tokens])
        with torch.no_grad():
            logits = self.models[version](tokens[None]).logits[0, len(prompt) - 1 : -1]
        said = logits.log_softmax(-1).gather(1, tokens[len(prompt) :, None])[:, 0]
        return (torch.tensor(completion.logprobs) - said).abs()


Use = Callable[[Bench], Coroutine[Any, Any, None]]


@pytest.fixture
def with_bench(endpoint: Endpoint, models: dict[int, Any]) -> Callable[[Use], None]:
    def run(use: Use) -> None:
        async def main() -> None:
            client = SGLangClient(endpoint, 60.0)
            bench = Bench(client, endpoint, models)
            try:
                await bench.publish(FIRST)
                await use(bench)
            finally:
                await client.close()

        asyncio.run(main())

    return run


def test_requests_go_on_under_new_weights_and_every_token_knows_its_own(with_bench):
    """Over two publishes; and a new request on a prompt that older weights had in the cache is exact, too."""

    async def use(bench: Bench) -> None:
        requests = await bench.begin()
        for version in (FIRST + 1, FIRST + 2):
            _, before = await bench.client.load()
            await bench.client.pause("retract")
            await bench.publish(version)
            await bench.client.resume()
            if version == FIRST + 1:
                await bench.come_on(before)  # what was retracted fills the pool again before anything is generated
        new = await bench.client.generate(PROMPTS[0], {**LONG, "max_new_tokens": 20})
        assert new.spans == [(FIRST + 2, 20)]
        assert bench.gaps(PROMPTS[0], new, FIRST + 2).max() < EXACT
        apart: dict[tuple[int, int], list[torch.Tensor]] = {}
        for prompt, completion in zip([*PROMPTS, PROMPTS[1]], await asyncio.gather(*requests), strict=True):
            assert completion.finish_reason is FinishReason.LENGTH
            assert [version for version, _ in completion.spans] == [FIRST, FIRST + 1, FIRST + 2]
            assert sum(count for _, count in completion.spans) == 400
            start = 0
            for version, count in completion.spans:
                assert bench.gaps(prompt, completion, version)[start : start + count].max() < EXACT
                for other in bench.models.keys() - {version}:
                    gaps = bench.gaps(prompt, completion, other)[start : start + count]
                    apart.setdefault((version, other), []).append(gaps)
                start += count
        # Of one request, a span may be a token long, and one token proves nothing.
        assert len(apart) == 6
        for gaps in map(torch.cat, apart.values()):
            assert gaps.mean() > APART

    with_bench(use)


def test_kept_keys_are_older_and_found_by_no_new_request(with_bench):
    async def use(bench: Bench) -> None:
        bench.client.cache_key = str(FIRST)
        requests = await bench.begin()
        await bench.client.pause("in_place")
        await bench.publish(FIRST + 1, flushes=False)
        bench.client.cache_key = str(FIRST + 1)
        await bench.client.resume()
        new = await bench.client.generate(PROMPTS[0], {**LONG, "max_new_tokens": 20})
        assert new.spans == [(FIRST + 1, 20)]
        assert bench.gaps(PROMPTS[0], new, FIRST + 1).max() < EXACT
        for prompt, completion in zip([*PROMPTS, PROMPTS[1]], await asyncio.gather(*requests), strict=True):
            (first, count), (second, _) = completion.spans
            assert (first, second) == (FIRST, FIRST + 1)
            assert bench.gaps(prompt, completion, FIRST)[:count].max() < EXACT
            assert bench.gaps(prompt, completion, FIRST + 1)[count:].mean() > APART  # of both versions, and of neither

    with_bench(use)


def test_a_flush_under_running_requests_is_refused_and_the_engine_lives(with_bench, engine):
    """SGLang's own answer is to end the engine."""

    async def use(bench: Bench) -> None:
        requests = await bench.begin()
        await bench.client.pause("in_place")
        with pytest.raises(SlimeError, match=RUNNING):
            await bench.publish(FIRST + 1)
        await bench.client.pause("retract")
        await bench.publish(FIRST + 1)
        await bench.client.resume()
        for completion in await asyncio.gather(*requests):
            assert [version for version, _ in completion.spans] == [FIRST, FIRST + 1]

    with_bench(use)
    assert engine.end() is None


def test_what_is_aborted_while_it_waits_has_no_token_and_no_version(with_bench):
    async def use(bench: Bench) -> None:
        requests = await bench.begin()
        await bench.client.pause("retract")
        await bench.client.abort_all()
        completions = await asyncio.gather(*requests[:3])
        assert {completion.finish_reason for completion in completions} == {FinishReason.ABORT}
        assert [completion.spans for completion in completions] == [[], [], []]
        await bench.client.resume()
        await requests[3]

    with_bench(use)
