"""One SGLang server over HTTP, for asyncio."""

from __future__ import annotations

import enum
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from slime.errors import NoAnswer, SlimeError
from slime.net import Endpoint
from slime.rollout.together import Answers, Body, Together, events

_NO_LIMIT = aiohttp.ClientTimeout(total=None)


class FinishReason(enum.StrEnum):
    """Why the engine stopped: SGLang's own words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class Generation:
    """What one request brought back, also when it was aborted.

    Attributes:
        tokens: generated token ids, the stop token included.
        logprobs: natural logarithms of their probabilities, one a token, under softmax(logits / temperature); what
            top-p and top-k cut off is not left out. SGLang counts temperature 0 as 1 here.
        finish_reason: stop, length or abort.
        weight_version: of the weights that finished it; engines are paused by abort while weights change, so all
            tokens are of this version. None: it was aborted before an engine began.
        num_drafted, num_accepted: tokens that were proposed by a drafting model, and those of them that were taken.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    weight_version: int | None
    num_drafted: int
    num_accepted: int


class ServerFault(SlimeError):
    """An engine could not finish a request, by its own account: HTTP status 500."""


class EngineGone(SlimeError):
    """An engine is not there any more, or broke the connection off."""


class EngineClient:
    """Requests to a server; opens its connections at the first one. `close` it in the same event loop.

    Args:
        endpoint: of the engine.
        timeout_s: for one request, except those that generate: how long they take says nothing of the engine (`load`
            does).
        log: the engine's log file, named in errors.

    Raises (every method):
        SlimeError: naming URL and log: the engine is gone, hangs, or refused the request.
    """

    num_generating = 1

    def __init__(self, endpoint: Endpoint, timeout_s: float = 600.0, *, log: Path | None = None) -> None:
        self.url, self.log, self.timeout_s = endpoint.url.rstrip("/"), log, timeout_s
        self._headers = endpoint.headers
        self._session: aiohttp.ClientSession | None = None
        self._together = Together(self._answer, self._answers)

    async def close(self) -> None:
        await self._together.close()
        if self._session:
            await self._session.close()

    def _connect(self) -> aiohttp.ClientSession:
        """The session; the caller bounds the number of requests, so it does not.

        Each request has a connection of its own: SGLang closes idle ones after 5 s, perhaps while they are taken again.
        """
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._session

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], **fields: Any) -> Generation:
        """Continue `input_ids` under SGLang's sampling parameters (`temperature`, `max_new_tokens`, ...).

        Args:
            fields: others of SGLang's request (`rid`, ...); one with any is sent by itself.

        Raises:
            EngineGone: before it was answered.
        """
        body = {"input_ids": list(input_ids), "sampling_params": dict(sampling), "return_logprob": True, **fields}
        ask = self._answer if fields else self._together.ask
        return self._generation(await ask(body))

    async def _answer(self, body: Body) -> Any:
        return await self._request("POST", "/generate", body, _NO_LIMIT)

    async def _answers(self, body: Body) -> Answers:
        """SGLang's answers to the requests of one body, each with its place, as they come."""
        missing = set(range(len(body["input_ids"])))
        async with self._asking("POST", "/generate", body, _NO_LIMIT) as response:
            self._check(response.status, "/generate", await response.text() if response.status != HTTPStatus.OK else "")
            async for event in events(response.content.iter_any()):
                if error := event.get("error"):
                    self._check(error["code"], "/generate", error["message"])
                if event["meta_info"]["finish_reason"]:
                    missing.remove(event["index"])
                    yield event["index"], event
            if missing:
                raise EOFError(f"it ends, and {len(missing)} of the requests have none")

    def _generation(self, answer: Mapping[str, Any]) -> Generation:
        meta = answer["meta_info"]
        if status := meta["finish_reason"].get("status_code"):  # of an error, which a streamed answer has in its text
            self._check(status, "/generate", meta["finish_reason"]["message"])
        logprobs = meta.get("output_token_logprobs") or []  # absent if aborted before the first token
        return Generation(
            tokens=[token for _, token, _ in logprobs],
            logprobs=[logprob for logprob, _, _ in logprobs],
            finish_reason=FinishReason(meta["finish_reason"]["type"]),
            weight_version=self._version(meta["weight_version"]),
            num_drafted=meta.get("spec_num_proposed_drafts", 0),  # absent unless it drafts
            num_accepted=meta.get("spec_num_correct_drafts", 0),
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

    async def pause_generation(self) -> None:
        """Abort what runs and hold new requests back until `continue_generation`: the state to publish in."""
        await self._post("/pause_generation", {"mode": "abort"})

    async def continue_generation(self) -> None:
        await self._post("/continue_generation", {})

    async def flush_cache(self) -> None:
        """Wait until the engine is idle, then have it forget the prefix cache."""
        await self._post(f"/flush_cache?timeout={self.timeout_s:g}", None)

    async def release_memory_occupation(self, tags: Sequence[str] = ()) -> None:
        """Give GPU memory back (`kv_cache`, `weights`, `cuda_graph`; empty: all); needs `enable_memory_saver`."""
        await self._post("/release_memory_occupation", {"tags": list(tags) or None})

    async def resume_memory_occupation(self, tags: Sequence[str] = ()) -> None:
        await self._post("/resume_memory_occupation", {"tags": list(tags) or None})

    async def load(self) -> tuple[int, int]:
        """Requests that run or wait, and tokens in the pool that they use: one of both changes while it generates."""
        ranks = (await self._get("/v1/loads?include=core"))["loads"]
        num_requests = sum(rank["num_running_reqs"] + rank["num_waiting_reqs"] for rank in ranks)
        return num_requests, sum(rank["num_used_tokens"] for rank in ranks)

    async def model_info(self) -> dict[str, Any]:
        """SGLang's `/model_info`: model_path, weight_version, ..."""
        info: dict[str, Any] = await self._get("/model_info")
        return info

    async def server_info(self) -> dict[str, Any]:
        """SGLang's `/server_info`: fields of its `ServerArgs` as they came out, and sizes only the engine knows."""
        info: dict[str, Any] = await self._get("/server_info")
        return info

    async def health(self) -> None:
        """Returns when the server answers; raises otherwise."""
        await self._get("/health")

    async def _get(self, path: str) -> Any:
        return await self._request("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, Any] | None) -> Any:
        return await self._request("POST", path, body)

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: aiohttp.ClientTimeout | None = None
    ) -> Any:
        async with self._asking(method, path, body, timeout) as response:
            text = await response.text()
        self._check(response.status, path, text)
        return _parse(text)

    @asynccontextmanager
    async def _asking(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: aiohttp.ClientTimeout | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, to be read within."""
        session, timeout = self._connect(), timeout or aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            async with session.request(method, self.url + path, json=body, timeout=timeout) as response:
                yield response
        except TimeoutError as error:
            limit = f"no answer to {path} within {self.timeout_s:g} s"
            raise self._error(limit, "Raise rollout.request_timeout_s if it was only slow.", NoAnswer) from error
        except (aiohttp.ClientError, EOFError) as error:
            what = f"no answer to {path}: {error}"
            raise self._error(what, "The engine died or was never there.", EngineGone) from error

    def _check(self, status: int, path: str, text: str) -> None:
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self._error(f"{path} failed: {text[:500]}", "Start the same command again to resume.", ServerFault)
        if status != HTTPStatus.OK:
            raise self._error(f"{path} was refused with status {status}: {text[:500]}", "Mend the request.")

    def _error(self, what: str, todo: str, kind: type[SlimeError] = SlimeError) -> SlimeError:
        log = f" Its log: {self.log}" if self.log else ""
        return kind(what, where=f"engine {self.url}", todo=todo + log)


def _parse(text: str) -> Any:
    """JSON where the server answers in JSON; `/health` and some others answer with bare words."""
    return json.loads(text) if text.startswith(("{", "[")) else text
