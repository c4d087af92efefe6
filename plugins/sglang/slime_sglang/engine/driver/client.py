"""One SGLang server over HTTP, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import aiohttp
import orjson

from slime.engine_client.client import Completion, EngineGone, FinishReason, ServerFault
from slime.errors import NoAnswer, SlimeError
from slime.net import Endpoint
from slime.segments import SPANS
from slime_sglang.engine.driver.batched_requests import Answers, Body, RequestBatcher, events
from slime_sglang.engine.frames import ASKS, GENERATE, answer_of, answers_of

_NO_LIMIT = aiohttp.ClientTimeout(total=None)
_JSON = {"Content-Type": "application/json"}
_KEPT_S = 2.0
"""Seconds that an idle connection is kept: a new one costs more than all else of a request. SGLang keeps it for 5."""


class SGLangClient:
    """A `slime.engine_client.client.EngineClient`. `close` it in the event loop of its first request.

    Args:
        timeout_s: for one request, except those that generate: how long they take says nothing of the engine (`load`
            does).
        log: the engine's log file, named in errors.

    Attributes:
        cache_key: a request finds in the prefix cache what others of the same key left there.

    Raises (every method):
        SlimeError: naming URL and log: the engine is gone, hangs, or refused the request.
    """

    num_generating = 1

    def __init__(self, endpoint: Endpoint, timeout_s: float = 600.0, *, log: Path | None = None) -> None:
        self.url, self.log, self.timeout_s = endpoint.url.rstrip("/"), log, timeout_s
        self._headers = endpoint.headers
        self.cache_key: str | None = None
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._batcher = RequestBatcher(self._answer, self._answers)

    def move(self, endpoint: Endpoint) -> None:
        """Send requests to `endpoint` from now on: the engine was started again there."""
        self.url, self._headers = endpoint.url.rstrip("/"), endpoint.headers

    async def close(self) -> None:
        await self._batcher.close()
        for session in self._sessions.values():
            await session.close()

    async def hang_up(self) -> None:
        """Break every request off, which raises `EngineGone`: the host may be gone, and not say so."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _connect(self, *, fresh: bool = False) -> aiohttp.ClientSession:
        """The session, or the one whose requests have connections of their own. The caller bounds their number."""
        if fresh not in self._sessions:
            kept: Any = {"force_close": True} if fresh else {"keepalive_timeout": _KEPT_S}
            connector = aiohttp.TCPConnector(limit=0, **kept)
            self._sessions[fresh] = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._sessions[fresh]

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /, **fields: Any) -> Completion:
        """Continue `input_ids` under SGLang's sampling parameters (`temperature`, `max_new_tokens`, ...).

        Args:
            fields: others of SGLang's request (`rid`, ...); one with a `rid` is sent by itself.

        Raises:
            EngineGone: before it was answered.
        """
        body = {"input_ids": list(input_ids), "sampling_params": dict(sampling), "return_logprob": True, **fields}
        if self.cache_key is not None:
            body["extra_key"] = self.cache_key
        ask = self._answer if "rid" in fields else self._batcher.ask
        return self._completion(await ask(body))

    async def _answer(self, body: Body) -> Any:
        return await self._request("POST", GENERATE if ASKS in body else "/generate", body, _NO_LIMIT)

    async def _answers(self, body: Body) -> Answers:
        """SGLang's answers to the requests of one body, each with its place, as they come."""
        missing = set(range(len(body["input_ids"])))
        path, read = (GENERATE, answers_of) if ASKS in body else ("/generate", events)
        async with self._asking("POST", path, body, _NO_LIMIT) as response:
            self._check(response.status, path, await response.text() if response.status != HTTPStatus.OK else "")
            async for event in read(response.content.iter_any()):
                if error := event.get("error"):
                    self._check(error["code"], path, error["message"])
                if event["meta_info"]["finish_reason"]:
                    missing.remove(event["index"])
                    yield event["index"], event
            if missing:
                raise EOFError(f"it ends, and {len(missing)} of the requests have none")

    def _completion(self, answer: Mapping[str, Any]) -> Completion:
        meta = answer["meta_info"]
        if status := meta["finish_reason"].get("status_code"):  # of an error, which a streamed answer has in its text
            self._check(status, "/generate", meta["finish_reason"]["message"])
        logprobs = meta.get("output_token_logprobs") or []  # absent if aborted before the first token
        # Where it drew from some tokens alone and was asked which: log-probs are of these.
        narrowed = meta.get("output_token_sampling_logprobs") or map(itemgetter(0), logprobs)
        reason = FinishReason(meta["finish_reason"]["type"])
        noted = [span for entry in meta.get(SPANS) or () if entry for span in entry]
        return Completion(
            tokens=[*map(itemgetter(1), logprobs)],
            logprobs=[*narrowed],
            finish_reason=reason,
            # None if it was aborted in the midst of a publish, before its first token
            weight_version=self._version(meta["weight_version"]) if logprobs or reason != FinishReason.ABORT else None,
            num_drafted=meta.get("spec_num_proposed_drafts", 0),  # absent unless it drafts
            num_accepted=meta.get("spec_num_correct_drafts", 0),
            earlier=[(int(version), count) for version, count in noted],
            meta=meta,
        )

    def _version(self, text: str) -> int:
        if not text.isdecimal():
            raise self._error(f"the engine serves '{text}' weights", "Publish a weight version before generating.")
        return int(text)

    async def abort_all(self) -> None:
        """End every request now; each answers with what it had."""
        await self._post("/abort_request", {"abort_all": True})

    async def abort(self, rid: str) -> None:
        """End every request whose `rid` begins so."""
        await self._post("/abort_request", {"rid": rid})

    async def flush_cache(self) -> None:
        """Wait until the engine is idle, then have it forget the prefix cache."""
        await self._post(f"/flush_cache?timeout={self.timeout_s:g}", None)

    async def pause(self, mode: Literal["retract", "in_place"]) -> None:
        """Generate nothing until `resume`; requests stay in the engine, and those that have ended are answered by now.

        Args:
            mode: retract: requests go back to the queue, without their keys and values; in_place: they keep them.
        """
        await self._post("/pause_generation", {"mode": mode})
        await self.server_info()  # the pause is not answered by the scheduler; this is, and behind it

    async def resume(self) -> None:
        """Go on with what was paused."""
        await self._post("/continue_generation", {})

    async def load(self) -> tuple[int, int]:
        """Requests that run or wait, and tokens in the pool that they use: one of both changes while it generates."""
        ranks = (await self._get("/v1/loads?include=core"))["loads"]
        num_requests = sum(rank["num_running_reqs"] + rank["num_waiting_reqs"] for rank in ranks)
        return num_requests, sum(rank["num_used_tokens"] for rank in ranks)

    async def server_info(self) -> dict[str, Any]:
        """SGLang's `/server_info`: fields of its `ServerArgs` as they came out, and sizes only the engine knows."""
        info: dict[str, Any] = await self._get("/server_info")
        return info

    async def _get(self, path: str) -> Any:
        return await self._request("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, Any] | None) -> Any:
        return await self._request("POST", path, body)

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: aiohttp.ClientTimeout | None = None
    ) -> Any:
        async with self._asking(method, path, body, timeout) as response:
            answer = await response.read()
            self._check(
                response.status, path, "" if response.status == HTTPStatus.OK else answer.decode(errors="replace")
            )
            return answer_of(answer) if path == GENERATE else _parse(answer)

    @asynccontextmanager
    async def _asking(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: aiohttp.ClientTimeout | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, to be read within."""
        try:
            async with await self._sent(method, path, body, timeout) as response:
                yield response
        except TimeoutError as error:
            limit = f"no answer to {path} within {self.timeout_s:g} s"
            raise self._error(limit, "Raise rollout.request_timeout_s if it was only slow.", NoAnswer) from error
        except (aiohttp.ClientError, EOFError) as error:
            what = f"no answer to {path}: {error}"
            raise self._error(what, "The engine died or was never there.", EngineGone) from error

    async def _sent(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: aiohttp.ClientTimeout | None
    ) -> aiohttp.ClientResponse:
        """Send a request, once more where the connection breaks: it may have been an idle one, closed by the server in
        the moment in which it was taken. A server that is gone refuses the second."""
        data = None if body is None else orjson.dumps(body)  # the standard library takes longer than all else here
        more: Any = {"data": data, "headers": None if body is None else _JSON}
        more["timeout"] = timeout or aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            return await self._connect().request(method, self.url + path, **more)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._connect(fresh=True).request(method, self.url + path, **more)

    def _check(self, status: int, path: str, text: str) -> None:
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self._error(f"{path} failed: {text[:500]}", "Start the same command again to resume.", ServerFault)
        if status != HTTPStatus.OK:
            raise self._error(f"{path} was refused with status {status}: {text[:500]}", "Mend the request.")

    def _error(self, what: str, todo: str, kind: type[SlimeError] = SlimeError) -> SlimeError:
        log = f" Its log: {self.log}" if self.log else ""
        return kind(what, where=f"engine {self.url}", todo=todo + log)


def _parse(answer: bytes) -> Any:
    """JSON where the server answers in JSON; to some requests it answers with bare words."""
    return orjson.loads(answer) if answer.startswith((b"{", b"[")) else answer.decode()
