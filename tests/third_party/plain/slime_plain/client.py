"""Requests to one server (`slime.engine_client.client.EngineClient`), as `slime_plain.server` answers them."""

import aiohttp

from slime.engine_client.client import Completion, EngineGone, FinishReason, ServerFault
from slime.errors import NoAnswer, SlimeError


class Client:
    num_generating = 1
    cache_key = None

    def __init__(self, endpoint, timeout_s, log):
        self.log, self._timeout_s, self._session = log, timeout_s, None
        self.move(endpoint)

    def move(self, endpoint):
        self.url, self._headers = endpoint.url, endpoint.headers

    async def close(self):
        if self._session:
            await self._session.close()

    async def generate(self, input_ids, sampling, /, **fields):
        told = {"input_ids": list(input_ids), "sampling": dict(sampling)}
        answer = await self._ask("/generate", told, limited=False)
        reason = FinishReason(answer.pop("finish_reason"))
        return Completion(**answer, finish_reason=reason, num_drafted=0, num_accepted=0)

    async def abort_all(self):
        await self._ask("/abort")

    async def flush_cache(self):
        await self._ask("/flush")

    async def load(self):
        answer = await self._ask("/load")
        return answer["requests"], answer["tokens"]

    async def pause(self, mode):
        raise SlimeError("cannot pause", where="rollout.backend=plain", todo="Set rollout.max_staleness=0.")

    async def resume(self):
        raise SlimeError("cannot pause", where="rollout.backend=plain", todo="Set rollout.max_staleness=0.")

    async def _ask(self, path, told=None, *, limited=True):
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        limit = aiohttp.ClientTimeout(total=self._timeout_s if limited else None)
        where, todo = f"engine {self.url}", f"Its log: {self.log}"
        try:
            asking = self._session.post(self.url + path, json=told or {}, headers=self._headers, timeout=limit)
            async with asking as response:
                if response.status != 200:
                    raise ServerFault(f"{path}: {await response.text()}", where=where, todo=todo)
                return await response.json()
        except TimeoutError as error:
            raise NoAnswer(f"no answer to {path}", where=where, todo=todo) from error
        except aiohttp.ClientError as error:
            raise EngineGone(f"no answer to {path}: {error}", where=where, todo=todo) from error
