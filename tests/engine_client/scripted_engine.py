"""A real HTTP server that speaks SGLang's `/generate` and `/abort_request` and takes as long as a script says.

For tests of timing and failure in the loop, where what SGLang would generate does not matter. Token t of an answer to
prompt token p is `answer(p, t)`, whatever was generated before, so a continued response equals an uninterrupted one.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from slime.net import Endpoint, Secret
from slime.types import Verdict
from slime_sglang.engine.driver.client import SGLangClient

STOP_TOKEN = 0


@asynccontextmanager
async def connected(endpoint: Endpoint) -> AsyncIterator[SGLangClient]:
    """A client that is closed in the end."""
    client = SGLangClient(endpoint)
    try:
        yield client
    finally:
        await client.close()


def split(body: dict) -> list[dict]:
    """The requests of one body."""
    if not body.get("stream"):
        return [body]
    pairs = zip(body["input_ids"], body["sampling_params"], strict=True)
    return [{"input_ids": input_ids, "sampling_params": sampling} for input_ids, sampling in pairs]


def answer(prompt_token: int, position: int) -> int:
    return 100 + prompt_token * 10 + position % 10


class ScriptedEngine:
    """Use as an asynchronous context manager; `endpoint` is set within.

    Args:
        lengths: tokens of the response to the prompt whose first token is the key, stop token included.
        token_s: seconds a token takes, by the same key.
    """

    def __init__(self, lengths: dict[int, int] | None = None, token_s: dict[int, float] | None = None) -> None:
        self._lengths = defaultdict(lambda: 4, lengths or {})
        self._token_s = defaultdict(float, token_s or {})
        self.version = "3"
        self.drafts: dict[str, int] = {}
        self.requests: list[dict] = []
        self.messages: list[list[dict]] = []
        self.flushed_after: list[int] = []
        self.num_aborts = self.num_running = self.max_running = 0
        self.dies_after: int | None = None
        self.aborts_itself = False
        self.abort_answer_s = 0.0
        self._abort = asyncio.Event()

    async def __aenter__(self) -> ScriptedEngine:
        app = web.Application()
        app.add_routes([web.post("/generate", self._generate), web.post("/abort_request", self._abort_request)])
        app.add_routes([web.post("/flush_cache", self._flush_cache)])
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.endpoint = Endpoint(f"http://127.0.0.1:{self._runner.addresses[0][1]}", Secret("any"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _abort_request(self, request: web.Request) -> web.Response:
        assert await request.json() == {"abort_all": True}
        self.num_aborts += 1
        self._abort.set()
        self._abort = asyncio.Event()
        await asyncio.sleep(self.abort_answer_s)
        return web.Response()

    async def _flush_cache(self, request: web.Request) -> web.Response:
        assert float(request.query["timeout"]) > 0, "otherwise SGLang refuses unless it happens to be idle"
        assert self.num_running == 0, "SGLang waits until it is idle"
        self.flushed_after.append(len(self.requests))
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.messages.append(split(body))
        self.requests += split(body)
        if self.dies_after is not None and len(self.requests) > self.dies_after:
            request.transport.close()
        if not body.get("stream"):
            return web.json_response(await self._counted(body))
        return await self._stream(request, split(body))

    async def _stream(self, request: web.Request, bodies: list[dict]) -> web.StreamResponse:
        """As SGLang: an event for each as it is finished, in lines of its own, and then the end."""
        response = web.StreamResponse()
        await response.prepare(request)

        async def placed(index: int, body: dict) -> dict:
            return {"index": index, **await self._counted(body)}

        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(placed(index, body)) for index, body in enumerate(bodies)]
            for answer in asyncio.as_completed(answers):
                await response.write(b"data: " + json.dumps(await answer).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _counted(self, body: dict) -> dict:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            return await self._answer(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        finally:
            self.num_running -= 1

    async def _answer(self, input_ids: list[int], limit: int) -> dict:
        key, done = input_ids[0], len(input_ids) - 1
        tokens: list[int] = []
        reason = "abort" if self.aborts_itself else await self._decode(key, done, limit, tokens)
        return {
            "meta_info": {
                "output_token_logprobs": [[-token / 100, token, None] for token in tokens],
                "finish_reason": {"type": reason},
                "weight_version": self.version,
                **self.drafts,
            }
        }

    async def _decode(self, key: int, done: int, limit: int, tokens: list[int]) -> str:
        """Fills `tokens`; like SGLang, an aborted request finishes its step and is called aborted even if that step
        ended it, and a response that ends with its last allowed token has reached its length."""
        aborted = self._abort
        while True:
            is_aborted = await self._aborted_within(aborted, self._token_s[key])
            position = done + len(tokens)
            ended = position == self._lengths[key] - 1
            tokens.append(STOP_TOKEN if ended else answer(key, position))
            if is_aborted or ended or len(tokens) == limit:
                return "abort" if is_aborted else "length" if len(tokens) == limit else "stop"

    @staticmethod
    async def _aborted_within(aborted: asyncio.Event, seconds: float) -> bool:
        if not seconds:
            return aborted.is_set()
        try:
            await asyncio.wait_for(aborted.wait(), seconds)
        except TimeoutError:
            return False
        return True


class Letters:
    """A tokenizer of one letter a token."""

    eos_token_id, name_or_path = STOP_TOKEN, ""

    def decode(self, tokens, skip_special_tokens):
        return "".join(chr(token) for token in tokens if token != STOP_TOKEN)


class Scorer:
    """Rewards 1 and 0 by the sample's index; `verdicts` overrides it by (prompt token, sample index). `together`: it
    judges groups, whose samples it then counts as one."""

    def __init__(self, verdicts=None, seconds=0.0, *, together=False):
        self.verdicts, self.seconds, self.scored, self.together = verdicts or {}, seconds, [], together

    def judges_groups(self, prompt):
        return self.together

    async def score_group(self, samples):
        await asyncio.sleep(self.seconds)
        self.scored.append((samples[0].prompt.id, tuple(sample.index for sample in samples)))
        return [self.verdicts.get((each.prompt.label, each.index), Verdict.of(each.index % 2)) for each in samples]

    async def score(self, sample):
        await asyncio.sleep(self.seconds)
        self.scored.append((sample.prompt.id, sample.index))
        return self.verdicts.get((sample.prompt.label, sample.index), Verdict.of(sample.index % 2))
