"""The HTTP server of the endpoint: it lives while there are attempts, in their event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import ModuleType

import orjson
from aiohttp import web

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
CLOSING_S = 1.0
"""Seconds in which a client may still read what it was answered, once there are no more attempts."""
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
        self._starting: asyncio.Task[web.AppRunner] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def attempt(self, model: Responder) -> AsyncIterator[tuple[Attempt, str]]:
        """An attempt that can be asked until the end of the block, and its URL, without the API's `/v1`."""
        attempt = Attempt(model, self._hearing)
        self._attempts[attempt.key] = attempt
        self._starting = self._starting or asyncio.create_task(self._start())
        try:
            port = (await asyncio.shield(self._starting)).addresses[0][1]
            host = f"[{self._host}]" if ":" in self._host else self._host
            yield attempt, f"http://{host}:{port}/{attempt.key}"
        finally:
            attempt.close()
            del self._attempts[attempt.key]
            self._closed.add(attempt.key)
            if not self._attempts:
                self._stop()

    async def _start(self) -> web.AppRunner:
        runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=CLOSING_S)
        await runner.setup()
        await web.TCPSite(runner, self._host, 0, backlog=2048).start()
        return runner

    def _stop(self) -> None:
        starting, self._starting = self._starting, None
        if starting and starting.done() and not starting.cancelled() and not starting.exception():
            stopping = asyncio.create_task(starting.result().cleanup())
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
        elif starting:
            starting.cancel()
        self._closed.clear()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=0)  # no limit
        for prefix in ("/{key}/v1", "/v1", "/{key}"):
            app.router.add_post(f"{prefix}/chat/completions", self._chat_completions)
            app.router.add_post(f"{prefix}/messages", self._messages)
            app.router.add_get(f"{prefix}/models", self._models)
        app.router.add_post("/{key}/verdict", self._verdict)
        return app

    async def _chat_completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answered(http, chat_completions)

    async def _messages(self, http: web.Request) -> web.StreamResponse:
        return await self._answered(http, anthropic_messages)

    async def _models(self, http: web.Request) -> web.Response:
        if isinstance(found := self._find(http, chat_completions), web.Response):
            return found
        model = {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL, "created": 0,
                 "created_at": "1970-01-01T00:00:00Z", "owned_by": "slime"}  # fmt: skip
        listed = {"object": "list", "data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}
        return _json(orjson.dumps(listed))

    async def _verdict(self, http: web.Request) -> web.Response:
        if isinstance(attempt := self._find(http, chat_completions), web.Response):
            return attempt
        try:
            attempt.verdict = judged(await http.read())
        except RefusedRequestError as error:
            return _refusal(chat_completions, error)
        except ConnectionError:  # the client is gone
            return web.Response(status=HTTPStatus.BAD_REQUEST)
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _answered(self, http: web.Request, dialect: ModuleType) -> web.StreamResponse:
        try:
            body = orjson.loads(await http.read())
        except orjson.JSONDecodeError as error:
            return _fault(dialect, f"the body is not JSON: {error}", HTTPStatus.BAD_REQUEST)
        except ConnectionError:  # the client is gone
            return web.Response(status=HTTPStatus.BAD_REQUEST)
        if isinstance(attempt := self._find(http, dialect), web.Response):
            return attempt
        try:
            if not isinstance(body, dict):
                raise RefusedRequestError("the body is no object", "")
            request = dialect.read(body, attempt.repeated)
            asked = attempt.ask(request, _is_repeated(http))
        except RefusedRequestError as error:
            return _refusal(dialect, error)
        asked.num_waiting += 1
        try:
            return await _told(http, dialect, request, asked)
        finally:
            asked.num_waiting -= 1

    def _find(self, http: web.Request, dialect: ModuleType) -> Attempt | web.Response:
        bearer = http.headers.get("authorization", "").removeprefix("Bearer ").strip()
        keys = [http.match_info.get("key"), bearer, http.headers.get("x-api-key")]
        for key in keys:
            if key in self._attempts:
                return self._attempts[key]
        if any(key in self._closed for key in keys):
            return _fault(dialect, "the attempt of this key has ended", HTTPStatus.GONE)
        return _fault(dialect, "there is no attempt with this key", HTTPStatus.UNAUTHORIZED)


def _is_repeated(http: web.Request) -> bool | None:
    """What the SDKs of OpenAI and Anthropic say of a request."""
    count = http.headers.get("x-stainless-retry-count", "")
    return int(count) > 0 if count.isdecimal() else None


async def _told(http: web.Request, dialect: ModuleType, request: Request, asked: Asked) -> web.StreamResponse:
    """Answer one client."""
    work = asked.work
    if not work.done():
        await asyncio.wait({work}, timeout=STREAM_AFTER_S if request.is_streamed else None)
    if work.done() and (fault := _fault_of(dialect, asked)):
        return fault
    if request.is_streamed:
        return await _streamed(http, dialect, request, asked)
    body = dialect.whole(request, work.result())
    asked.is_heard |= _is_there(http)
    return _json(body)


async def _streamed(http: web.Request, dialect: ModuleType, request: Request, asked: Asked) -> web.StreamResponse:
    response, work = web.StreamResponse(headers={"Content-Type": "text/event-stream"}), asked.work
    try:
        await response.prepare(http)
        while not work.done():
            await response.write(dialect.KEEP_ALIVE)
            await asyncio.wait({work}, timeout=STREAM_AFTER_S)
        asked.is_heard |= _is_there(http) and not work.cancelled() and not work.exception()
        await response.write(b"".join(_events(dialect, request, asked)))
    except ConnectionError:  # the client is gone, and nobody else reads this
        pass
    return response


def _is_there(http: web.Request) -> bool:
    """Whether the client has kept its connection."""
    return http.transport is not None and not http.transport.is_closing()


def _events(dialect: ModuleType, request: Request, asked: Asked) -> Iterator[bytes]:
    if fault := _fault_of(dialect, asked):
        assert isinstance(fault.body, bytes), "a fault is JSON"
        yield dialect.fault_event(orjson.loads(fault.body)["error"]["message"], fault.status)
    else:
        yield from dialect.events(request, asked.work.result())


def _fault_of(dialect: ModuleType, asked: Asked) -> web.Response | None:
    """What is said in place of an answer."""
    if asked.work.cancelled():
        return _fault(dialect, "the attempt has ended", HTTPStatus.GONE)
    error = asked.work.exception()
    if isinstance(error, RefusedRequestError):
        return _refusal(dialect, error)
    return _fault(dialect, "the attempt cannot go on", HTTPStatus.SERVICE_UNAVAILABLE) if error else None


def _refusal(dialect: ModuleType, error: RefusedRequestError) -> web.Response:
    body = dialect.fault(error.message, HTTPStatus.BAD_REQUEST, error.param or None, error.code)
    return _json(body, HTTPStatus.BAD_REQUEST)


def _fault(dialect: ModuleType, message: str, status: HTTPStatus) -> web.Response:
    # An SDK would repeat what is 500 or more; nothing here becomes better by that.
    return _json(dialect.fault(message, status), status, {"x-should-retry": "false"})


def _json(body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type=_JSON)
