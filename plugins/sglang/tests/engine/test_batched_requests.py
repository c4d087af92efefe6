"""Requests that are sent as one, over HTTP to scripted engines; test_client.py and test_loop_sglang.py have SGLang."""

import asyncio
import itertools
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from slime.builtins import Single
from slime.config.schema import RewardConfig, RolloutConfig, SamplingConfig
from slime.engine_client.client import FinishReason, ServerFault
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.net import Endpoint, Secret
from slime.sampling.sampler import Sampler
from slime.types import Group, Prompt, Sample
from slime_sglang.engine.driver import batched_requests
from slime_sglang.engine.driver.batched_requests import AT_ITS_END, RequestBatcher, events
from tests.engine_client import virtual_clock
from tests.engine_client.scripted_engine import STOP_TOKEN, Letters, Scorer, ScriptedEngine, answer, connected

LIMIT = {"max_new_tokens": 9}


def ask(engine, *prompts, use=None):
    """Ask for a response to each prompt at one moment; what `use` makes of the requests, or their answers."""

    async def main():
        async with engine, connected(engine.endpoint) as client:
            requests = [asyncio.create_task(client.generate([prompt], LIMIT)) for prompt in prompts]
            return await (use(requests) if use else asyncio.gather(*requests))

    return asyncio.run(main())


def test_what_is_asked_at_one_moment_is_one_message():
    engine = ScriptedEngine(lengths={1: 2, 2: 3, 3: 99})
    completions = ask(engine, 1, 2, 3)
    assert [completion.tokens for completion in completions] == [
        [answer(1, 0), STOP_TOKEN],
        [answer(2, 0), answer(2, 1), STOP_TOKEN],
        [answer(3, position) for position in range(9)],
    ]
    assert [completion.finish_reason for completion in completions] == [
        FinishReason.STOP,
        FinishReason.STOP,
        FinishReason.LENGTH,
    ]
    assert len(engine.messages) == 1
    assert [body["sampling_params"] for body in engine.requests] == [LIMIT | {"stream_interval": AT_ITS_END}] * 3


def test_a_request_alone_is_asked_for_as_it_is():
    engine = ScriptedEngine()
    ask(engine, 1)
    assert engine.requests == [{"input_ids": [1], "sampling_params": LIMIT, "return_logprob": True}]


def test_nobody_waits_for_the_longest():
    async def first(requests):
        done, running = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        for request in running:
            request.cancel()
        await asyncio.wait(running)
        return [requests.index(request) for request in done]

    assert ask(ScriptedEngine(token_s={1: 30, 3: 30}), 1, 2, 3, use=first) == [1]


def test_messages_are_bounded(monkeypatch):
    monkeypatch.setattr(batched_requests, "MOST_REQUESTS", 3)
    engine = ScriptedEngine()
    assert len(ask(engine, *range(7))) == 7
    assert sorted(map(len, engine.messages)) == [1, 3, 3]

    monkeypatch.setattr(batched_requests, "MOST_TOKENS", 10)
    bodies = [{"input_ids": [0] * length} for length in (4, 4, 4, 30, 1, 9, 1)]
    parts = batched_requests._parts([batched_requests._Waiting(body, None) for body in bodies])
    assert [[len(one.body["input_ids"]) for one in part] for part in parts] == [[4, 4], [4], [30], [1, 9], [1]]


def test_the_engine_learns_that_nobody_waits_any_more():
    engine = ScriptedEngine(token_s={1: 30, 2: 30})

    async def give_up(requests):
        while engine.num_running < 2:
            assert not any(request.done() for request in requests)
            await asyncio.sleep(0)
        for request in requests:
            request.cancel()
        async with asyncio.timeout(20):
            while engine.num_running:
                await asyncio.sleep(0)

    ask(engine, 1, 2, use=give_up)


def test_who_gives_up_leaves_the_others_their_answers():
    engine = ScriptedEngine(token_s={1: 30})

    async def one_gives_up(requests):
        while len(engine.requests) < 2:
            await asyncio.sleep(0)
        requests[0].cancel()
        return await asyncio.gather(*requests, return_exceptions=True)

    gone, there = ask(engine, 1, 2, use=one_gives_up)
    assert isinstance(gone, asyncio.CancelledError)
    assert there.finish_reason is FinishReason.STOP


def test_an_engine_that_dies_fails_all_of_them():
    engine = ScriptedEngine()
    engine.dies_after = 1

    async def failures(requests):
        return await asyncio.gather(*requests, return_exceptions=True)

    found = ask(engine, 1, 2, use=failures)
    assert all(isinstance(error, SlimeError) for error in found)
    assert all(f"engine {engine.endpoint.url}: no answer to /generate" in str(error) for error in found)


@asynccontextmanager
async def serving(answered):
    """A client of a server whose requests `answered` answers."""
    app = web.Application()
    app.add_routes([web.post("/generate", answered)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with connected(Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}", Secret("any"))) as client:
            yield client
    finally:
        await runner.cleanup()


def saying(*lines):
    """A client of a server that answers every request with these events."""

    async def answered(request):
        return web.Response(body=b"".join(b"data: " + line.encode() + b"\n\n" for line in lines))

    return serving(answered)


def event(index, **finish_reason):
    meta = {"finish_reason": {"type": "abort", **finish_reason}, "weight_version": "3"}
    return json.dumps({"index": index, "meta_info": meta})


async def both(*lines):
    async with saying(*lines) as client:
        requests = (client.generate([token], LIMIT) for token in (1, 2))
        return await asyncio.gather(*requests, return_exceptions=True)


def test_a_refusal_is_everybodys():
    refusal = json.dumps({"error": {"message": "the temperature is -1", "code": 400}})
    for error in asyncio.run(both(refusal, "[DONE]")):
        assert "/generate was refused with status 400: the temperature is -1" in str(error)


def test_an_engines_fault_is_of_the_request_that_has_it():
    """SGLang answers a single request with the status; among others it stands in the text."""
    faulty = event(1, status_code=500, message="out of memory")
    aborted, error = asyncio.run(both(event(0, status_code=None, message="Aborted"), faulty, "[DONE]"))
    assert aborted.finish_reason is FinishReason.ABORT
    assert isinstance(error, ServerFault)
    assert "/generate failed: out of memory" in str(error)


@pytest.mark.parametrize("lines", [[event(0)], [event(0), "[DONE]"]], ids=["broken off", "one is missing"])
def test_an_answer_that_misses_one_is_an_error(lines):
    there, error = asyncio.run(both(*lines))
    assert there.finish_reason is FinishReason.ABORT
    assert isinstance(error, SlimeError)
    assert "no answer to /generate" in str(error)


def test_a_connection_is_kept_whose_answer_ends_behind_the_mark():
    """SGLang's last bytes come a moment after its mark; a closed connection left garbage on both sides."""
    peers = set()

    async def answered(request):
        peers.add(request.transport.get_extra_info("peername"))
        response = web.StreamResponse()
        await response.prepare(request)
        for line in (event(0), event(1), "[DONE]"):
            await response.write(b"data: " + line.encode() + b"\n\n")
        await has_answers.wait()
        return response

    async def thrice():
        async with serving(answered) as client:
            for _ in range(3):
                has_answers.clear()
                await asyncio.gather(client.generate([1], LIMIT), client.generate([2], LIMIT))
                has_answers.set()
                async with asyncio.timeout(20):
                    while client._batcher._sent:
                        await asyncio.sleep(0)

    has_answers = asyncio.Event()
    asyncio.run(thrice())
    assert len(peers) == 1


class Counting(virtual_clock.VirtualEngine):
    """Counts the messages."""

    def __init__(self):
        super().__init__(lambda prompt, seed: 5)
        self.sizes = []
        self._batcher = RequestBatcher(self._alone, self._stream)

    async def generate(self, input_ids, sampling):
        return await self._batcher.ask({"input_ids": list(input_ids), "sampling_params": sampling})

    async def _alone(self, body):
        self.sizes.append(1)
        return await super().generate(*body.values())

    async def _stream(self, body):
        self.sizes.append(len(body["input_ids"]))
        parts = zip(body["input_ids"], body["sampling_params"], strict=True)
        for place, completion in enumerate(await asyncio.gather(*itertools.starmap(super().generate, parts))):
            yield place, completion


def test_what_ends_at_one_moment_is_replaced_by_one_message():
    """Else the first wave alone would go together, and every later request by itself."""
    engine = Counting()

    async def main():
        cfg, reward = RolloutConfig(max_requests_per_engine=8), RewardConfig(name="scripted")
        sampler = Sampler(cfg, reward, 5, EngineSet([engine]), Letters(), Single(), Scorer())
        pipeline = sampler.begin(SamplingConfig(max_response_tokens=9), 0, 24)
        for number in range(6):
            prompt = Prompt(f"0/{number}", (), (number,))
            pipeline.submit(Group(prompt, [Sample(prompt, index) for index in range(4)]))
        return [(await pipeline.next_finished()).id for _ in range(6)]

    assert virtual_clock.run(main()) == [f"0/{number}" for number in range(6)]
    assert engine.sizes == [8, 8, 8]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_events_may_be_long_and_come_in_any_pieces(size):
    said = [{"text": "x" * 300_000 if size > 1 else "x" * 30, "number": number} for number in range(3)]
    data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in said) + b"data: [DONE]\n\n"

    async def pieces():
        for start in range(0, len(data), size):
            yield data[start : start + size]

    async def read():
        return [each async for each in events(pieces())]

    assert asyncio.run(read()) == said
