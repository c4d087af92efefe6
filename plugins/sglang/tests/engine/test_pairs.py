"""What becomes of a request that two engines answer; test_pairs_sglang.py has SGLang's own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from slime.config.schema import Device, EngineGroupConfig, Role, SlimeConfig
from slime.engine_client.client import NO_COMPLETION, FinishReason, ServerFault
from slime.errors import SlimeError
from slime.net import Endpoint, Secret
from slime.topology.topology import read_topology
from slime_sglang.engine.driver import pairs as pairs_module
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.driver.pairs import ROOMS, Pairs, PrefillServer
from slime_sglang.engine.frames import ASKS, FROM, GENERATE, ROWS, frame

SAMPLING = {"max_new_tokens": 3}
Answer = Callable[["Side"], Awaitable[dict[str, Any]]]


def generated(*tokens: int, reason: str = "length", version: str = "3") -> dict[str, Any]:
    logprobs = [[-token / 100, token, None] for token in tokens]
    return {"output_token_logprobs": logprobs, "finish_reason": {"type": reason}, "weight_version": version}


class Fault(Exception):
    """Status 500."""


class Side:
    """A real HTTP server in an engine's place, which answers what is to be generated as `answer` says.

    Attributes:
        requests: what was asked for.
        aborts: what `/abort_request` was asked for.
        aborted: an abort has come.
    """

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.answer, self.bootstrap_port = answer, port
        self.requests: list[dict[str, Any]] = []
        self.aborts: list[dict[str, Any]] = []
        self.aborted, self.may_answer = asyncio.Event(), asyncio.Event()
        self.num_open = 0

    async def __aenter__(self) -> Side:
        app = web.Application()
        app.add_routes([web.post(path, self._generate) for path in ("/generate", GENERATE)])
        app.add_routes([web.post("/abort_request", self._abort)])
        app.add_routes([web.get("/server_info", self._info), web.get("/v1/loads", self._loads)])
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.endpoint = Endpoint(f"http://127.0.0.1:{self._runner.addresses[0][1]}", Secret("any"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _generate(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.num_open += 1
        try:
            answer = {"meta_info": await self.answer(self)}
            return web.Response(body=frame(answer)) if request.path == GENERATE else web.json_response(answer)
        except Fault as fault:
            return web.json_response({"error": {"message": str(fault)}}, status=500)
        except ConnectionError:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        finally:
            self.num_open -= 1

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborts.append(await request.json())
        self.aborted.set()
        return web.Response()

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"disaggregation_bootstrap_port": self.bootstrap_port})

    async def _loads(self, request: web.Request) -> web.Response:
        load = {"num_running_reqs": self.num_open, "num_waiting_reqs": 0, "num_used_tokens": 10 * self.num_open}
        return web.json_response({"loads": [load]})


async def first_token(side: Side) -> dict[str, Any]:
    return generated(7)


async def response(side: Side) -> dict[str, Any]:
    return generated(7, 8, 9)


async def after_abort(side: Side) -> dict[str, Any]:
    """As SGLang does with what waits for the other side."""
    await side.aborted.wait()
    raise Fault("transfer failed with exception KVTransferError: Aborted by AbortReq.")


async def held(side: Side) -> dict[str, Any]:
    await side.may_answer.wait()
    return generated(7)


async def never(side: Side) -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def die(side: Side) -> dict[str, Any]:
    raise ConnectionError


def use(prefill: list[Answer], decode: list[Answer], work: Callable[..., Awaitable[Any]]) -> Any:
    """`await work(pairs, prefill sides, decode sides)`."""
    cfg = SlimeConfig()
    cfg.cluster.device = Device.cpu
    cfg.rollout.engines = {
        "decode": EngineGroupConfig(role=Role.decode, devices=len(decode)),
        "prefill": EngineGroupConfig(role=Role.prefill, devices=len(prefill)),
    }

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            behind = [await stack.enter_async_context(Side(answer)) for answer in decode]
            before = [await stack.enter_async_context(Side(answer, 700 + n)) for n, answer in enumerate(prefill)]
            clients = [SGLangClient(side.endpoint) for side in (*behind, *before)]
            for client in clients:
                stack.push_async_callback(client.close)
            roles = [engine.role for engine in read_topology(cfg).engines]
            return await asyncio.wait_for(work(await Pairs.of(roles, clients), before, behind), 30)

    return asyncio.run(main())


async def once(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
    return await pairs.generate([1, 2], SAMPLING, return_hidden_states=True)


def test_both_get_the_whole_request_under_one_room_and_decode_answers() -> None:
    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
        completion = await once(pairs, before, behind)
        return completion, before[0].requests, behind[0].requests, before[0].endpoint.url

    completion, asked, asked_too, url = use([first_token], [response], work)
    assert (completion.tokens, completion.finish_reason, completion.weight_version) == ([7, 8, 9], "length", 3)
    assert asked == asked_too
    expected = {"input_ids": [1, 2], "sampling_params": SAMPLING, "return_logprob": True, "return_hidden_states": True}
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 700}
    assert asked[0].items() >= {**expected, **room}.items()
    assert asked[0]["bootstrap_room"] > 0, "0 is none"
    assert url.startswith("http://127.0.0.1:")


def test_work_goes_to_who_has_least() -> None:
    """Prompts differ in length, so prefill counts tokens; decode has each as long as it takes, so it counts them."""

    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
        prompts = [[1] * 100, [2] * 10, [3] * 10, [4] * 10]
        running = [asyncio.create_task(pairs.generate(prompt, SAMPLING)) for prompt in prompts]
        while sum(len(side.requests) for side in (*before, *behind)) < 8:
            await asyncio.sleep(0.01)
        assert await pairs.load() == (4, 80)
        for side in (*before, *behind):
            side.may_answer.set()
        await asyncio.gather(*running)
        assert await pairs.load() == (0, 0)
        again = [await pairs.generate([5], SAMPLING) for _ in range(2)]
        assert len(again) == 2
        return [len(side.requests) for side in before], [len(side.requests) for side in behind], before

    of_prefill, of_decode, before = use([held, held], [held, held], work)
    assert of_prefill == [1 + 2, 3], "an answered request weighs nothing"
    assert of_decode == [2 + 2, 2]
    rooms = [[request["bootstrap_room"] for request in side.requests] for side in before]
    assert all(later - earlier == 1 for own in rooms for earlier, later in itertools.pairwise(own))
    assert len({*rooms[0], *rooms[1]}) == 6
    assert len({len(request["rid"]) for side in before for request in side.requests}) == 1, "none begins another"


def test_clients_that_follow_others_use_no_room_of_theirs() -> None:
    """SGLang's scheduler dies of a room that it knows as done or aborted, and knows it forever."""

    async def rooms() -> list[int]:
        client = SGLangClient(Endpoint("http://127.0.0.1:1", Secret("any")))
        numbers = [PrefillServer(client, number, 700).room()["bootstrap_room"] for number in (0, 0, 0, 1)]
        await client.close()
        return numbers

    numbers = asyncio.run(rooms())
    assert len({*numbers}) == 4
    assert max(numbers[:3]) < ROOMS < numbers[3], "each engine has a range of its own"


def test_a_prefill_engine_that_was_started_again_is_asked_for_its_port_there() -> None:
    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
        await once(pairs, before, behind)
        async with Side(first_token, 800) as again:
            pairs._prefill[0].client.move(again.endpoint)
            await once(pairs, before, behind)
            assert pairs.url.startswith(again.endpoint.url)
            return before[0].requests + again.requests, behind[0].requests

    asked, asked_too = use([first_token], [response], work)
    assert asked == asked_too
    assert [request["bootstrap_port"] for request in asked] == [700, 800]
    assert asked[0]["bootstrap_room"] < asked[1]["bootstrap_room"]


@pytest.mark.parametrize("dead", ["prefill", "decode"])
def test_the_death_of_one_side_ends_the_wait_of_the_other_and_is_what_is_told(dead: str) -> None:
    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
        (fallen,), (waiting,) = (before, behind) if dead == "prefill" else (behind, before)
        with pytest.raises(SlimeError, match=f"engine {fallen.endpoint}: no answer to /generate"):
            await once(pairs, before, behind)
        await asyncio.sleep(0)
        return waiting

    begun = time.monotonic()
    waiting = use(*([[die], [after_abort]] if dead == "prefill" else [[after_abort], [die]]), work)
    assert waiting.aborts == [{"rid": waiting.requests[0]["rid"]}]
    assert waiting.num_open == 0
    assert time.monotonic() - begun < 60


def test_a_side_that_hangs_does_not_hide_the_death_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs_module, "END_S", 0.1)

    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> None:
        with pytest.raises(SlimeError, match=f"engine {behind[0].endpoint}: no answer"):
            await once(pairs, before, behind)

    use([never], [die], work)


def test_a_death_is_told_also_if_the_other_side_noticed_it_first() -> None:
    """Prefill aborts what it cannot send, which alone would count as an abort that somebody wanted."""

    async def noticed(side: Side) -> dict[str, Any]:
        return generated(reason="abort")

    async def die_late(side: Side) -> dict[str, Any]:
        await side.aborted.wait()
        raise ConnectionError

    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> None:
        with pytest.raises(SlimeError, match=f"engine {behind[0].endpoint}: no answer to /generate"):
            await once(pairs, before, behind)

    use([noticed], [die_late], work)


def test_a_fault_of_one_side_is_told() -> None:
    async def broken(side: Side) -> dict[str, Any]:
        raise Fault("Metadata corruption detected")

    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> None:
        with pytest.raises(ServerFault, match=f"engine {behind[0].endpoint}: /generate failed: .*Metadata corruption"):
            await once(pairs, before, behind)

    use([after_abort], [broken], work)


def test_what_waits_in_an_abort_is_aborted_with_nothing() -> None:
    """SGLang answers with status 500: a retry, as by the stock router, would wait in an engine that is paused."""

    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
        running = asyncio.create_task(once(pairs, before, behind))
        while not (before[0].requests and behind[0].requests):
            await asyncio.sleep(0.01)
        await pairs.abort_all()
        return await running, before[0].aborts[0], behind[0].aborts[0], len(before[0].requests)

    assert use([after_abort], [after_abort], work) == (NO_COMPLETION, {"abort_all": True}, {"abort_all": True}, 1)


def test_what_decode_had_when_it_was_aborted_counts() -> None:
    async def partly(side: Side) -> dict[str, Any]:
        await side.aborted.wait()
        return generated(7, 8, reason="abort")

    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
        running = asyncio.create_task(once(pairs, before, behind))
        while not behind[0].requests:
            await asyncio.sleep(0.01)
        await pairs.abort_all()
        return await running

    for prefill in (first_token, after_abort):
        completion = use([prefill], [partly], work)
        assert (completion.tokens, completion.finish_reason) == ([7, 8], FinishReason.ABORT)


def test_decode_does_not_wait_for_a_prefill_that_was_aborted() -> None:
    async def aborted(side: Side) -> dict[str, Any]:
        return generated(reason="abort")

    assert use([aborted], [after_abort], once) == NO_COMPLETION


def test_two_versions_in_a_pair_are_an_error() -> None:
    async def older(side: Side) -> dict[str, Any]:
        return generated(7, version="2")

    with pytest.raises(SlimeError, match=r"stale engine: the two answered with weight versions 2 and 3"):
        use([older], [response], once)


def test_requests_are_counted_by_who_generates() -> None:
    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> int:
        return pairs.num_generating

    assert use([first_token], [response] * 3, work) == 3


@pytest.mark.parametrize("is_aborted", [False, True])
def test_prefill_tells_of_the_prompt_and_decode_of_what_it_generated(is_aborted: bool) -> None:
    """Decode would send what stood in the places of the prompt before, which it did not compute."""

    async def of_prompt(side: Side) -> dict[str, Any]:
        return {**generated(7, reason="abort" if is_aborted else "length"), ROWS: bytes(range(1, 13))}

    async def of_response(side: Side) -> dict[str, Any]:
        return {**generated(7, 8, 9), ROWS: bytes(range(101, 113))}

    async def work(pairs: Pairs, before: list[Side], behind: list[Side]) -> Any:
        completion = await pairs.generate([1, 2], SAMPLING, **{ASKS: True})
        return completion, before[0].requests[0], behind[0].requests[0]

    completion, asked, asked_too = use([of_prompt], [of_response], work)
    assert asked_too == {**asked, FROM: 2}
    prompt = bytes(12) if is_aborted else bytes(range(1, 13))
    assert (completion.tokens, completion.meta[ROWS]) == ([7, 8, 9], prompt + bytes(range(101, 113)))
