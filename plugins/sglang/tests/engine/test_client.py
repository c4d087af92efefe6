"""The client against a real engine: what comes back, what an abort leaves, and what errors say."""

import asyncio
import socket

import pytest

from slime.engine_client.client import FinishReason
from slime.errors import NoAnswer, SlimeError
from slime.net import LOOPBACK, Endpoint, Secret, reserved_port
from slime_sglang.engine.driver.batched_requests import events, joined
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing.engines import hf_tensors
from slime_testing.publishing import publish
from tests.engine_client.scripted_engine import ScriptedEngine, connected

PROMPT = [5, 6, 7]
LONG = {"max_new_tokens": 480, "ignore_eos": True}
"""Takes the tiny model about a second."""


@pytest.fixture(scope="module")
def served(endpoint, hf_model, tiny_model):
    publish(hf_tensors(hf_model(tiny_model)), [endpoint], 4, 1 << 24)
    return endpoint


def nobody(port):
    return Endpoint(f"http://{LOOPBACK}:{port}", Secret("any"))


def with_client(endpoint, use, **options):
    """Run `await use(client)` in an event loop of its own."""

    async def run():
        client = SGLangClient(endpoint, **options)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_generation(served):
    completion = with_client(served, lambda client: client.generate(PROMPT, {"max_new_tokens": 16, "ignore_eos": True}))
    assert len(completion.tokens) == len(completion.logprobs) == 16
    assert all(logprob < 0 for logprob in completion.logprobs)
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.weight_version == 4


@pytest.mark.slow
def test_stop_token_is_part_of_the_answer(served):
    completion = with_client(
        served, lambda client: client.generate(PROMPT, {"max_new_tokens": 400, "stop_token_ids": list(range(64))})
    )
    assert completion.finish_reason is FinishReason.STOP
    assert completion.tokens[-1] < 64
    assert all(token >= 64 for token in completion.tokens[:-1])


@pytest.mark.slow
def test_aborted_requests_bring_what_they_had(served):
    async def abort_on_the_way(client):
        requests = [asyncio.create_task(client.generate(PROMPT, LONG)) for _ in range(4)]
        while (await client.load())[1] < 100:  # prompts, and a few tokens of each response
            assert not any(request.done() for request in requests)
            await asyncio.sleep(0.01)
        await client.abort_all()
        return await asyncio.gather(*requests)

    completions = with_client(served, abort_on_the_way)
    assert {completion.finish_reason for completion in completions} == {FinishReason.ABORT}
    assert all(0 < len(completion.tokens) < 480 for completion in completions)
    assert all(len(completion.tokens) == len(completion.logprobs) for completion in completions)


@pytest.mark.slow
def test_server_info(served, tiny_model):
    assert with_client(served, lambda client: client.server_info())["model_path"] == str(tiny_model)


@pytest.mark.slow
def test_refused_request_says_why(served):
    with pytest.raises(SlimeError, match=r"/generate was refused with status 400.*temperature"):
        with_client(served, lambda client: client.generate(PROMPT, {"temperature": -1.0}))


@pytest.mark.slow
def test_sglang_answers_each_of_several_requests_once_and_refuses_them_together(served):
    bodies = [
        {"input_ids": [*PROMPT, number], "sampling_params": {"max_new_tokens": 8, "ignore_eos": True, **other}}
        for number, other in enumerate([{}, {"temperature": 0.5}, {"max_new_tokens": 3}, {"top_k": 4}])
    ]

    async def answers(client, bodies):
        async with client._asking("POST", "/generate", joined(bodies), None) as response:
            return [event async for event in events(response.content.iter_any())]

    found = with_client(served, lambda client: answers(client, bodies))
    counts = {event["index"]: event["meta_info"]["completion_tokens"] for event in found}
    assert (len(found), counts) == (4, {0: 8, 1: 8, 2: 3, 3: 8})

    bodies[2]["sampling_params"]["temperature"] = -1.0
    (refusal,) = with_client(served, lambda client: answers(client, bodies))
    assert refusal["error"]["code"] == 400
    assert "temperature" in refusal["error"]["message"]


@pytest.mark.slow
def test_the_load_changes_while_tokens_are_generated(served):
    async def watch(client):
        requests = [asyncio.create_task(client.generate(PROMPT, LONG)) for _ in range(3)]
        loads = []
        while not all(request.done() for request in requests):
            await asyncio.sleep(0.05)
            loads.append(await client.load())
        await client.flush_cache()
        return loads, await client.load()

    loads, idle = with_client(served, watch)
    assert max(num_requests for num_requests, _ in loads) == 3
    assert len({num_tokens for _, num_tokens in loads}) > 3
    assert idle == (0, 0)


def test_no_answer_in_time_is_an_error():
    with socket.create_server((LOOPBACK, 0)) as silent:
        endpoint = nobody(silent.getsockname()[1])
        with pytest.raises(NoAnswer, match=r"no answer to /server_info within 0\.1 s.*request_timeout_s"):
            with_client(endpoint, lambda client: client.server_info(), timeout_s=0.1)


def test_a_response_may_take_longer_than_an_answer():
    async def generate():
        async with ScriptedEngine(token_s={5: 0.1}) as engine:
            client = SGLangClient(engine.endpoint, timeout_s=0.2)
            try:
                return await client.generate([5], {"max_new_tokens": 4})
            finally:
                await client.close()

    assert len(asyncio.run(generate()).tokens) == 4


def test_a_connection_is_kept_for_the_next_request():
    connections = 0

    async def serve(reader, writer):
        nonlocal connections
        connections += 1
        for _ in range(3):
            await reader.readuntil(b'{"abort_all":true}')
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def thrice():
        server = await asyncio.start_server(serve, LOOPBACK, 0)
        async with server, connected(nobody(server.sockets[0].getsockname()[1])) as client:
            for _ in range(3):
                await client.abort_all()

    asyncio.run(thrice())
    assert connections == 1


def test_a_request_on_an_idle_connection_that_the_engine_closes_is_sent_again():
    """SGLang closes one after 5 s, and the next request may be on its way: seen between steps of a busy machine."""

    async def serve_once(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read(1)  # a second request, or the end
        writer.close()

    async def twice():
        server = await asyncio.start_server(serve_once, LOOPBACK, 0)
        async with server, connected(nobody(server.sockets[0].getsockname()[1])) as client:
            await client.abort_all()
            await client.abort_all()

    asyncio.run(twice())


def test_engine_that_is_gone_is_named_with_its_log(tmp_path):
    with reserved_port(LOOPBACK) as port, pytest.raises(SlimeError, match=f"{LOOPBACK}:{port}") as raised:
        with_client(nobody(port), lambda client: client.server_info(), log=tmp_path / "engine-0.log")
    assert "engine-0.log" in str(raised.value)


def test_weights_that_were_never_published_are_refused():
    answer = {"meta_info": {"finish_reason": {"type": "stop"}, "weight_version": "unpublished"}}
    with pytest.raises(SlimeError, match=r"serves 'unpublished' weights\. Publish"):
        SGLangClient(nobody(9))._completion(answer)
