"""One SGLang server over HTTP, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import orjson

from slime.engine_client.client import Completion, EngineGone, FinishReason, ServerFault
from slime.errors import NoAnswer, SlimeError
from slime.net import Endpoint
from slime.segments import SPANS
from slime_plugin_sglang.driver.batched_requests import Answers, Body, RequestBatcher, events
from slime_plugin_sglang.driver.connections import Connections

_KEPT_S = 2.0
"""Seconds that an idle connection is kept for the next request; a new one costs more than all else of a request. SGLang
closes idle ones after 5 s."""


class SGLangClient:
    """A `slime.engine_client.client.EngineClient`; opens its connections at the first request. `close` it in the same
    event loop.

    Args:
        endpoint: of the engine.
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
        self.log, self.timeout_s = log, timeout_s
        self.cache_key: str | None = None
        self.url, self._connections = _to(endpoint)
        self._batcher = RequestBatcher(self._answer, self._answers)

    def move(self, endpoint: Endpoint) -> None:
        """Send requests to `endpoint` from now on: the engine was started again there."""
        self._connections.close()
        self.url, self._connections = _to(endpoint)

    async def close(self) -> None:
        await self._batcher.close()
        self._connections.close()
        await asyncio.sleep(0)  # the event loop may end next, and closes sockets only as it comes round

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
        with self._faults("/generate"):
            return await self._request("POST", "/generate", body)

    async def _answers(self, body: Body) -> Answers:
        """SGLang's answers to the requests of one body, each with its place, as they come."""
        missing = set(range(len(body["input_ids"])))
        with self._faults("/generate"):
            async with self._connections.asking("POST", "/generate", orjson.dumps(body), in_one=False) as answer:
                if answer.status != HTTPStatus.OK:
                    said = b"".join([piece async for piece in answer.pieces()])
                    self._check(answer.status, "/generate", said)
                async for event in events(answer.pieces()):
                    if error := event.get("error"):
                        self._check(error["code"], "/generate", error["message"].encode())
                    if event["meta_info"]["finish_reason"]:
                        missing.remove(event["index"])
                        yield event["index"], event
                if missing:
                    raise EOFError(f"it ends, and {len(missing)} of the requests have none")

    def _completion(self, answer: Mapping[str, Any]) -> Completion:
        meta = answer["meta_info"]
        if status := meta["finish_reason"].get("status_code"):  # of an error, which a streamed answer has in its text
            self._check(status, "/generate", meta["finish_reason"]["message"].encode())
        logprobs = meta.get("output_token_logprobs") or []  # absent if aborted before the first token
        reason = FinishReason(meta["finish_reason"]["type"])
        noted = [span for entry in meta.get(SPANS) or () if entry for span in entry]
        return Completion(
            tokens=[*map(itemgetter(1), logprobs)],
            logprobs=[*map(itemgetter(0), logprobs)],
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
        """Generate nothing until `resume`; requests stay in the engine. When this returns, it has answered all that
        have ended.

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
        return await self._in_time("GET", path, None)

    async def _post(self, path: str, body: Mapping[str, Any] | None) -> Any:
        return await self._in_time("POST", path, body)

    async def _in_time(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        with self._faults(path):
            async with asyncio.timeout(self.timeout_s):
                return await self._request(method, path, body)

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else orjson.dumps(body)  # the standard library takes longer than all else here
        connections = self._connections
        answer = await connections.begin(method, path, data)
        said, status = answer.body, answer.status
        connections.give_back(answer)
        self._check(status, path, said)
        return _parse(said)

    @contextmanager
    def _faults(self, path: str) -> Iterator[None]:
        """Says of which engine they are."""
        try:
            yield
        except TimeoutError as error:
            limit = f"no answer to {path} within {self.timeout_s:g} s"
            raise self._error(limit, "Raise rollout.request_timeout_s if it was only slow.", NoAnswer) from error
        except (OSError, EOFError) as error:
            what = f"no answer to {path}: {error}"
            raise self._error(what, "The engine died or was never there.", EngineGone) from error

    def _check(self, status: int, path: str, said: bytes) -> None:
        if status == HTTPStatus.OK:
            return
        text = said.decode(errors="replace")[:500]
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self._error(f"{path} failed: {text}", "Start the same command again to resume.", ServerFault)
        raise self._error(f"{path} was refused with status {status}: {text}", "Mend the request.")

    def _error(self, what: str, todo: str, kind: type[SlimeError] = SlimeError) -> SlimeError:
        log = f" Its log: {self.log}" if self.log else ""
        return kind(what, where=f"engine {self.url}", todo=todo + log)


def _to(endpoint: Endpoint) -> tuple[str, Connections]:
    url = endpoint.url.rstrip("/")
    return url, Connections(url, endpoint.headers, _KEPT_S)


def _parse(answer: bytes) -> Any:
    """JSON where the server answers in JSON; to some requests it answers with bare words."""
    return orjson.loads(answer) if answer.startswith((b"{", b"[")) else answer.decode()
