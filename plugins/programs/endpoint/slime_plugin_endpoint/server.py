"""The HTTP server of the endpoint: it lives while there are attempts, in their event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import ModuleType
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from slime.contracts import Responder
from slime_plugin_endpoint import anthropic_messages, chat_completions
from slime_plugin_endpoint.attempt import Attempt
from slime_plugin_endpoint.hearing import Hearing
from slime_plugin_endpoint.judged import judged
from slime_plugin_endpoint.said import RefusedRequestError, Request
from slime_plugin_endpoint.tree import Asked

STREAM_AFTER_S = 10.0
"""Seconds after which a stream begins although there is no answer yet, and how often it then says so. An answer that is
there before can still be an error with its status."""
MODEL = "policy"
"""The model's name in the list of models. Every name is accepted."""
_JSON = "application/json"


class Server:
    """Tells attempts apart by their keys.

    Args:
        host: address that it listens at.
        hearing: reads what the model says.
    """

    def __init__(self, host: str, hearing: Hearing) -> None:
        self._host, self._hearing = host, hearing
        self._attempts: dict[str, Attempt] = {}
        self._closed: set[str] = set()
        self._starting: asyncio.Task[asyncio.Server] | None = None
        self._state = ServerState()

    @asynccontextmanager
    async def attempt(self, model: Responder) -> AsyncIterator[tuple[Attempt, str]]:
        """An attempt that can be asked until the end of the block, and its URL, without the API's `/v1`."""
        attempt = Attempt(model, self._hearing)
        self._attempts[attempt.key] = attempt
        self._starting = self._starting or asyncio.create_task(self._start())
        try:
            listening = await asyncio.shield(self._starting)
            port = listening.sockets[0].getsockname()[1]
            host = f"[{self._host}]" if ":" in self._host else self._host
            yield attempt, f"http://{host}:{port}/{attempt.key}"
        finally:
            attempt.close()
            del self._attempts[attempt.key]
            self._closed.add(attempt.key)
            if not self._attempts:
                self._stop()

    async def _start(self) -> asyncio.Server:
        config = uvicorn.Config(
            self._app(), http="h11", ws="none", lifespan="off", log_config=None, access_log=False, date_header=False
        )
        config.load()
        state = self._state = ServerState()
        state.default_headers = config.encoded_headers
        loop = asyncio.get_running_loop()

        def protocol() -> Any:
            return config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

        return await loop.create_server(protocol, self._host, 0, backlog=2048)

    def _stop(self) -> None:
        starting, self._starting = self._starting, None
        if starting and starting.done() and not starting.cancelled() and not starting.exception():
            starting.result().close()
        elif starting:
            starting.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        self._closed.clear()

    def _app(self) -> Starlette:
        routes = []
        for prefix in ("/{key}/v1", "/v1", "/{key}"):
            routes.append(Route(f"{prefix}/chat/completions", self._chat_completions, methods=["POST"]))
            routes.append(Route(f"{prefix}/messages", self._messages, methods=["POST"]))
            routes.append(Route(f"{prefix}/models", self._models))
        routes.append(Route("/{key}/verdict", self._verdict, methods=["POST"]))
        return Starlette(routes=routes)

    async def _chat_completions(self, http: HttpRequest) -> Response:
        return await self._answered(http, chat_completions)

    async def _messages(self, http: HttpRequest) -> Response:
        return await self._answered(http, anthropic_messages)

    async def _models(self, http: HttpRequest) -> Response:
        if isinstance(found := self._find(http, chat_completions), Response):
            return found
        model = {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL, "created": 0,
                 "created_at": "1970-01-01T00:00:00Z", "owned_by": "slime"}  # fmt: skip
        listed = {"object": "list", "data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}
        return Response(orjson.dumps(listed), media_type=_JSON)

    async def _verdict(self, http: HttpRequest) -> Response:
        if isinstance(attempt := self._find(http, chat_completions), Response):
            return attempt
        try:
            attempt.verdict = judged(await http.body())
        except RefusedRequestError as error:
            return _refusal(chat_completions, error)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _answered(self, http: HttpRequest, dialect: ModuleType) -> Response:
        try:
            body = orjson.loads(await http.body())
        except orjson.JSONDecodeError as error:
            return _fault(dialect, f"the body is not JSON: {error}", HTTPStatus.BAD_REQUEST)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        if isinstance(attempt := self._find(http, dialect), Response):
            return attempt
        try:
            if not isinstance(body, dict):
                raise RefusedRequestError("the body is no object", "")
            request = dialect.read(body)
            asked = attempt.ask(request, await _is_repeated(http))
        except RefusedRequestError as error:
            return _refusal(dialect, error)
        told = _Told(http, dialect, request, asked)
        if not request.is_streamed:
            await asyncio.wait({asked.work})
        return await told.begun()

    def _find(self, http: HttpRequest, dialect: ModuleType) -> Attempt | Response:
        bearer = http.headers.get("authorization", "").removeprefix("Bearer ").strip()
        keys = [http.path_params.get("key"), bearer, http.headers.get("x-api-key")]
        for key in keys:
            if key in self._attempts:
                return self._attempts[key]
        if any(key in self._closed for key in keys):
            return _fault(dialect, "the attempt of this key has ended", HTTPStatus.GONE)
        return _fault(dialect, "there is no attempt with this key", HTTPStatus.UNAUTHORIZED)


async def _is_repeated(http: HttpRequest) -> bool | None:
    """What the SDKs of OpenAI and Anthropic say of a request."""
    count = http.headers.get("x-stainless-retry-count", "")
    return int(count) > 0 if count.isdecimal() else None


class _Told(Response):
    """An answer on its way to one client.

    Args:
        http: what it asked by.
        dialect: the API.
    """

    def __init__(self, http: HttpRequest, dialect: ModuleType, request: Request, asked: Asked) -> None:
        super().__init__()
        self._http, self._dialect, self._request, self._asked = http, dialect, request, asked
        asked.num_waiting += 1

    async def begun(self) -> Response:
        """The response, once it is known how it begins."""
        asked = self._asked
        if not asked.work.done():
            await asyncio.wait({asked.work}, timeout=STREAM_AFTER_S)
        if asked.work.done() and (fault := _fault_of(self._dialect, asked)):
            asked.num_waiting -= 1
            return fault
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(send)
        finally:
            self._asked.num_waiting -= 1

    async def _send(self, send: Send) -> None:
        kind = "text/event-stream" if self._request.is_streamed else _JSON
        headers = [(b"content-type", kind.encode())]
        work = self._asked.work
        if not self._request.is_streamed:
            body = self._dialect.whole(self._request, work.result())
            headers.append((b"content-length", str(len(body)).encode()))
            pieces = iter((body,))
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        while not work.done():
            await send({"type": "http.response.body", "body": self._dialect.KEEP_ALIVE, "more_body": True})
            await asyncio.wait({work}, timeout=STREAM_AFTER_S)
        if self._request.is_streamed:
            pieces = self._events()
        body = b"".join(pieces)
        if not await self._http.is_disconnected():
            self._asked.is_heard |= not work.cancelled() and not work.exception()
            await send({"type": "http.response.body", "body": body})

    def _events(self) -> Iterator[bytes]:
        if fault := _fault_of(self._dialect, self._asked):
            yield b"".join(
                (self._dialect.fault_event(orjson.loads(fault.body)["error"]["message"], fault.status_code),)
            )
        else:
            yield from self._dialect.events(self._request, self._asked.work.result())


def _fault_of(dialect: ModuleType, asked: Asked) -> Response | None:
    """What is said in place of an answer."""
    if asked.work.cancelled():
        return _fault(dialect, "the attempt has ended", HTTPStatus.GONE)
    error = asked.work.exception()
    if isinstance(error, RefusedRequestError):
        return _refusal(dialect, error)
    return _fault(dialect, "the attempt cannot go on", HTTPStatus.SERVICE_UNAVAILABLE) if error else None


def _refusal(dialect: ModuleType, error: RefusedRequestError) -> Response:
    body = dialect.fault(error.message, HTTPStatus.BAD_REQUEST, error.param or None, error.code)
    return Response(body, HTTPStatus.BAD_REQUEST, media_type=_JSON)


def _fault(dialect: ModuleType, message: str, status: HTTPStatus) -> Response:
    # An SDK would repeat what is 500 or more; nothing here becomes better by that.
    headers = {"x-should-retry": "false"}
    return Response(dialect.fault(message, status), status, headers, media_type=_JSON)
